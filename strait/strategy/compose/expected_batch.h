// Which documents stand for all batches of a run, before it has begun.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/data/corpus.h"
#include "strait/strategy/compose/batch_plan.h"

namespace strait::strategy {

/// Of the document in which a token of the run's batches stands, on average.
int64_t attended_length(const Run& run, const Corpus& corpus);

/// Lengths of the first data-parallel rank's documents in two of the run's first 32 batches.
struct ExpectedLengths {
  std::vector<int64_t> median;  // whose attention takes the median of the predicted times
  std::vector<int64_t> widest;  // in which a rank has most tokens, in attention and beside it
};
/// UserError as BatchPlanner::plan, for any of these batches.
ExpectedLengths expected_lengths(const Run& run, int64_t data_ranks, const BatchPlanner& planner,
                                 const Corpus& corpus);

}  // namespace strait::strategy
