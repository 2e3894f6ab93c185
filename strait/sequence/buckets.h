// Nodes or ranks that documents are placed on, by what they have to do and what room they have,
// and what rings leave them. Internal to plans.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
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

/// Load of a node or of a rank, such as a sum of squares of lengths, and its free tokens.
struct Bucket {
  double load = 0;
  int64_t room = 0;
};
/// The least loaded one, or -1.
inline int32_t lightest(const std::vector<Bucket>& buckets, int64_t tokens) {
  int32_t best = -1;
  for (size_t i = 0; i < buckets.size(); ++i)
    if (buckets[i].room >= tokens &&
        (best < 0 || buckets[i].load < buckets[static_cast<size_t>(best)].load))
      best = static_cast<int32_t>(i);
  return best;
}

/// Buckets whose lightest one is asked for far more often than one of them lacks room: a
/// tournament, whose winner stands at place 1 and whose buckets begin at the count of places.
class Buckets {
 public:
  Buckets() = default;
  Buckets(int64_t count, int64_t room)
      : all_(static_cast<size_t>(count), {0, room}), winners_(2 * std::bit_ceil(all_.size()), -1) {
    for (size_t bucket = 0; bucket < all_.size(); ++bucket)
      winners_[winners_.size() / 2 + bucket] = static_cast<int32_t>(bucket);
    for (size_t place = winners_.size() / 2; --place > 0;) play(place);
  }
  const std::vector<Bucket>& all() const { return all_; }
  const Bucket& operator[](int32_t bucket) const { return all_[static_cast<size_t>(bucket)]; }
  void take(int32_t bucket, double load, int64_t tokens) {
    const auto at = static_cast<size_t>(bucket);
    all_[at].load += load;
    all_[at].room -= tokens;
    for (size_t place = (winners_.size() / 2 + at) / 2; place > 0; place /= 2) play(place);
  }
  /// As lightest.
  int32_t lightest_with(int64_t tokens) const {
    const int32_t best = winners_[1];
    return (*this)[best].room >= tokens ? best : lightest(all_, tokens);
  }

 private:
  /// The left one of equals.
  void play(size_t place) {
    const int32_t left = winners_[2 * place], right = winners_[2 * place + 1];
    winners_[place] = right < 0 || (*this)[left].load <= (*this)[right].load ? left : right;
  }

  std::vector<Bucket> all_;
  std::vector<int32_t> winners_;  // -1: no bucket
};

}  // namespace strait::sequence
