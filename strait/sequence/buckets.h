// Nodes or ranks that documents are placed on, by their sums of squares and what room they have,
// and what rings leave them. Internal to plans.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "strait/sequence/plan.h"

namespace strait::sequence {

inline double square(int64_t length) {
  return static_cast<double>(length) * static_cast<double>(length);
}

/// The most tokens that a member of a ring holds: one of each of its two chunks may be rounded up.
inline int64_t most_of_ring(int64_t length, int64_t ring) {
  return std::min(length, 2 * ((length + 2 * ring - 1) / (2 * ring)));
}

inline Zone zone_of(const RankGrid& grid, const std::vector<int32_t>& ranks) {
  if (ranks.size() == 1) return Zone::kLocal;
  return grid.node_of(ranks.front()) == grid.node_of(ranks.back()) ? Zone::kIntra : Zone::kInter;
}

/// Sum of squares and free tokens of a node or of a rank.
struct Bucket {
  double squares = 0;
  int64_t room = 0;
};
/// The least loaded one, or -1.
inline int32_t lightest(const std::vector<Bucket>& buckets, int64_t tokens) {
  int32_t best = -1;
  for (size_t i = 0; i < buckets.size(); ++i)
    if (buckets[i].room >= tokens &&
        (best < 0 || buckets[i].squares < buckets[static_cast<size_t>(best)].squares))
      best = static_cast<int32_t>(i);
  return best;
}

/// The rank with the least of something; ties by rank.
using LeastFirst = std::priority_queue<std::pair<double, int32_t>,
                                       std::vector<std::pair<double, int32_t>>, std::greater<>>;

/// Buckets whose lightest one is asked for far more often than one of them lacks room.
class Buckets {
 public:
  Buckets() = default;
  Buckets(int64_t count, int64_t room) : all_(static_cast<size_t>(count), {0, room}) {
    for (int32_t bucket = 0; bucket < count; ++bucket) least_.push({0, bucket});
  }
  const std::vector<Bucket>& all() const { return all_; }
  const Bucket& operator[](int32_t bucket) const { return all_[static_cast<size_t>(bucket)]; }
  void take(int32_t bucket, double squares, int64_t tokens) {
    Bucket& of = all_[static_cast<size_t>(bucket)];
    of.squares += squares;
    of.room -= tokens;
    least_.push({of.squares, bucket});
  }
  /// As lightest.
  int32_t lightest_with(int64_t tokens) {
    while (least_.top().first != (*this)[least_.top().second].squares) least_.pop();  // outdated
    const int32_t best = least_.top().second;
    return (*this)[best].room >= tokens ? best : lightest(all_, tokens);
  }

 private:
  std::vector<Bucket> all_;
  LeastFirst least_;  // and entries that are outdated
};

}  // namespace strait::sequence
