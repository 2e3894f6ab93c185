// Which documents stand for all batches of a run, before it has begun.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/data/corpus.h"
#include "strait/strategy/compose/batch_plan.h"

namespace strait::strategy {

/// Of the document, or what a window has of it, in which a token of the run's batches stands, on
/// average; 0 where sequences are of one stream.
int64_t attended_length(const Run& run, const Corpus& corpus);

/// Causal pairs of the rank with most over those of the mean, where batches of whole documents
/// stand in rows that ranks share however the documents lie (1 elsewhere), summed over the run's
/// first batches: the `members` that have two chunks each of a row wait for each other in every
/// row, data-parallel ranks at the end of a step.
double slowest_attention(const Run& run, int64_t data_ranks, int64_t members, const Corpus& corpus);

/// Lengths of documents, by row: that of a data-parallel rank.
using RowLengths = std::vector<std::vector<int64_t>>;
/// Of the run's first batches: 32, or fewer where they have more than 512 rows together. Beyond 4
/// rows some stand for others like them; the slowest, and that of most tokens, for themselves.
struct ExpectedLengths {
  RowLengths median;  // of one whose slowest row takes the median of predicted times
  RowLengths widest;  // of each row where a rank of it has most tokens, in attention and beside it
};
/// UserError (sequence.capacity_tokens, with its line) where a row of any of these batches is more
/// than its ranks hold, or a capacity that the run sets is less than sequence.engine gives a rank
/// of one; names a capacity that holds them all.
ExpectedLengths expected_lengths(const Run& run, int64_t data_ranks, const BatchPlanner& planner,
                                 const Corpus& corpus);

}  // namespace strait::strategy
