// Stages whose blocks several ranks share, for a search: x inside of a stage, as Megatron and the
// ORNL recipes have it.
#pragma once

#include <cstddef>
#include <vector>

#include "strait/config/run.h"
#include "strait/plan/candidate.h"
#include "strait/plan/trials.h"

namespace strait::plan {

/// A transformer with up to `most` pairs of mesh.axes.x and mesh.axes.stage, both above 1: those
/// that are the fastest by products, by the share of time that stages wait for the first
/// micro-batch, and by AxoNN's model of what x and data send (plan/tensor_grid.h). Those whose
/// state fits into memory come first. x is a power of two, inside of what the outermost links join.
std::vector<Run> stages_on_grids(const Run& run, const Setting& setting, size_t most,
                                 const Require& require);

}  // namespace strait::plan
