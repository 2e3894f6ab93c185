// The partition of a batch into zones and its two levels of buckets: nodes, then ranks, balanced by
// squares of lengths, or by these and tokens, under a capacity in tokens.
#pragma once

#include <cstdint>
#include <span>

#include "strait/sequence/plan.h"

namespace strait::sequence {

/// Lengths of documents, which outlive it, sorted once for all plans of them. UserError of
/// check_lengths.
struct Batch {
  Batch(std::span<const int64_t> documents);
  Batch(const std::vector<int64_t>& documents) : Batch(std::span<const int64_t>(documents)) {}
  std::span<const int64_t> lengths;
  std::vector<int32_t> longest_first;  // ties by index
};

struct PartitionOptions {
  RankGrid grid;
  int64_t capacity_tokens = 0;  // of a rank
  /// Longer documents are split inside a node, or between nodes where another one is less loaded.
  /// Below these lengths a split cannot hide its transfers.
  int64_t split_inside = 1, split_between = 1;
  /// What a token has to do outside of attention, in squares of lengths: loads are balanced by
  /// both.
  double token_squares = 0;
};

/// Longest first. A document goes to the node with the smallest sum of squares that
/// has room, in it to such a rank, or becomes a ring of as few nodes or ranks as balance and
/// capacity allow. Where nothing has room the threshold falls to a shorter length and the level
/// starts again; at the end ranks are balanced by tokens (balanced.h). UserError (key
/// sequence.capacity_tokens) where that does not fit either; names the nearest capacity that does.
/// Capacity is never exceeded. Cost: O(documents x (nodes + ranks of a node)) per attempt, O(log
/// documents) attempts.
Plan partition(const Batch& batch, const PartitionOptions& options);

/// The layouts to compare with. `fits` says whether the capacity holds them.
enum class Baseline : uint8_t {
  kPacked,    // documents to ranks by tokens, none split
  kEven,      // every document over all ranks, ring
  kGathered,  // the same, keys gathered
  kHeads,     // the same, all-to-all; needs heads that divide
  kHybrid     // rings of a power of two of neighbours, by length (hybrid.h); fits where it can
};
inline constexpr int kNumBaselines = 5;
const char* baseline_name(Baseline baseline);
Plan baseline_plan(const Batch& batch, const PartitionOptions& options, Baseline baseline);
/// Whether no rank has more tokens than the capacity.
bool fits(const Plan& plan, int64_t capacity_tokens);

}  // namespace strait::sequence
