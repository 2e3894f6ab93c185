// The pass that gives the stages of a pipeline their blocks: mesh axis "stage". Micro-batches run
// one forward, one backward (1F1B; Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN
// Training", 2021, section 2.2): stage i of S has at most min(S - i, m) of m micro-batches in
// flight.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// The ranks of each stage, whose programs differ. One stage: one class, without members, for all.
/// Errors: UserError (mesh.axes.stage) when there are more stages than transformer blocks.
std::vector<std::vector<int64_t>> stage_classes(const ModelShape& shape, const Mesh& mesh);

/// The first stage that holds each unit. A tied unit is held by the first and the last.
std::vector<int64_t> first_stages(const ModelShape& shape, const Mesh& mesh);

/// Leaves the draft the visits of its stage's blocks, between receives of what enters and sends of
/// what leaves, and gives values of a micro-batch as many places as there are micro-batches in
/// flight. Stages have equally many transformer blocks, or one more or less. With one stage it does
/// nothing.
void pipeline(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
              const draft::StepOptions& options);

}  // namespace strait::strategy
