// Ways to cut a model into stages, for a search: how many stages, and in which order they work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/config/run.h"
#include "strait/plan/trials.h"

namespace strait::plan {

/// "stage 2, zero-bubble-h2", "stage 4, interleaved 2".
std::string staging_text(const Run& run);

/// The run with every order of its stages, and its own number of chunks and the most usual ones,
/// that it can take.
std::vector<Run> orders_of_stages(const Run& run);

/// Whether so many micro-batches are what the order of the run takes.
bool takes_micro_batches(const Run& run, int64_t count);

/// The run with mesh.axes.stage = `stages` in each of those orders; one refusal where there is
/// none. `require` throws UserError for a run that cannot be.
Trials cut_into_stages(const Run& run, int64_t stages, const Require& require);

struct StageNumbers {
  std::vector<int64_t> all;  // divisors of the ranks from 2 to the layers, ascending
  int64_t parts = 1;         // groups that the outermost level of links joins: a stage for each
};
StageNumbers numbers_of_stages(const Run& run, int64_t ranks);

}  // namespace strait::plan
