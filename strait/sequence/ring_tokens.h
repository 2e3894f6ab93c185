// What a ring leaves each of its members at most. Internal to plans.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "strait/sequence/plan.h"

namespace strait::sequence {

/// The most tokens that a member of a ring holds: one of each of its two chunks may be rounded up.
inline int64_t most_of_ring(int64_t length, int64_t ring) {
  return std::min(length, 2 * ((length + 2 * ring - 1) / (2 * ring)));
}

inline Zone zone_of(const RankGrid& grid, const std::vector<int32_t>& ranks) {
  if (ranks.size() == 1) return Zone::kLocal;
  return grid.node_of(ranks.front()) == grid.node_of(ranks.back()) ? Zone::kIntra : Zone::kInter;
}

}  // namespace strait::sequence
