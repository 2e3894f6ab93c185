// Grids of ranks that share blocks, x times y, for a search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "strait/config/run.h"
#include "strait/plan/candidate.h"
#include "strait/plan/tensor_grid.h"
#include "strait/plan/trials.h"

namespace strait::plan {

/// The step of a run as AxoNN's model counts it.
GridStep grid_step(const Run& run);

/// The run with these axes.
Run on_grid(const Run& run, int64_t x, int64_t y);

/// Refuses a transformer that its axes x and y do not divide. UserError.
void require_grid(const Run& run, int64_t vocabulary);

/// "x 2, y 4", "x 8, rows split"; "" where no ranks share blocks.
std::string grid_text(const Run& run);

/// A transformer on at most `most` grids: those that it can take and that send for the shortest
/// time by AxoNN's model (plan/tensor_grid.h), which is cheaper than composing them.
/// Of those that it cannot take the first is refused.
Trials quietest_grids(const Run& run, const Setting& setting, size_t most, const Require& require);

/// A U-Net on every grid that it can take. Of those that it cannot take the first is refused.
Trials grids_of_unet(const Run& run, int64_t ranks, const Require& require);

}  // namespace strait::plan
