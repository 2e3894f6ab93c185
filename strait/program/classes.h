// The ranks of a class.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// Its members, or every rank.
inline std::vector<int64_t> class_ranks(const Program& program) {
  if (!program.members.empty()) return program.members;
  std::vector<int64_t> ranks(static_cast<size_t>(program.ranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// How many there are.
inline int64_t class_size(const Program& program) {
  return program.members.empty() ? program.ranks : static_cast<int64_t>(program.members.size());
}

/// The one that stands for its class: shards shrink with the rank, so it holds most.
inline int64_t first_rank(const Program& program) {
  return program.members.empty() ? 0 : program.members.front();
}

inline bool is_message(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kReceive; }

}  // namespace strait::program
