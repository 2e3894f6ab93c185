// The plan of last resort: ranks have as even counts of tokens as splitting documents makes them,
// whatever their attention costs.
#pragma once

#include <cstdint>

#include "strait/sequence/partition.h"

namespace strait::sequence {

/// Documents of at most t tokens are whole, longer ones rings of as few ranks as leave each about t
/// of their tokens; longest first, each to the ranks with the fewest. Of several t, halves of each
/// other, that whose fullest rank has the fewest. Cost: O(log length * documents * ranks log
/// ranks).
Plan balanced_plan(const Batch& batch, const RankGrid& grid);

/// A capacity that holds the balanced plan of any documents of `tokens` tokens together. With e =
/// tokens / ranks: a ring's member has at most 2 tokens more than its share, so that rings of
/// shares above t / 2 hold at most e (1 + 4 / t) per rank; ranks differ by at most t + 2, what is
/// placed at once; t = 2 sqrt(e) is among those tried: e + 4 sqrt(e) + 2.
int64_t enough_capacity(int64_t tokens, int64_t ranks);

/// Of the rank that has most.
int64_t most_tokens(const Plan& plan);

}  // namespace strait::sequence
