// Which documents stand for all batches of a run, before it has begun.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/data/corpus.h"
#include "strait/strategy/compose/batch_plan.h"

namespace strait::strategy {

/// Of the document in which a token of the run's batches stands, on average.
int64_t attended_length(const Run& run, const Corpus& corpus);

/// Lengths of the first data-parallel rank's documents in that of the run's first 32 batches whose
/// attention takes the median of their predicted times. UserError as BatchPlanner::plan, for any of
/// these batches.
std::vector<int64_t> expected_lengths(const Run& run, int64_t data_ranks,
                                      const BatchPlanner& planner, const Corpus& corpus);

}  // namespace strait::strategy
