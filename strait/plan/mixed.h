// Meshes of several axes, for a search: x inside of a stage, as Megatron and the ORNL recipes have
// it, and sequences that these share, as Llama 3's.
#pragma once

#include <cstddef>
#include <vector>

#include "strait/config/run.h"
#include "strait/plan/candidate.h"
#include "strait/plan/trials.h"

namespace strait::plan {

/// A transformer on up to `most` meshes of which at least two of the axes x, sequence and stage are
/// above 1: those that are the fastest by products, by the share of time that stages wait for the
/// first micro-batch, by AxoNN's model of what x and data send (plan/tensor_grid.h), and by the
/// keys that attention does not hide. Those that fit into memory, roughly counted, come first, with
/// rows split over x (tensor.sequence_parallel) and without. x is inside of what the outermost
/// links join; x and sequence are powers of two. Axes that plan.search does not name stay 1.
std::vector<Run> mixed_meshes(const Run& run, const Setting& setting, size_t most,
                              const Require& require);

}  // namespace strait::plan
