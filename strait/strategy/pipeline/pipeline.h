// The pass that gives the stages of a pipeline their blocks and their order: mesh axis "stage". A
// stage has one run of neighbouring blocks, or several (chunks).
#pragma once

#include <cstdint>
#include <vector>

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// Blocks [begin, end) of a chain.
struct BlockRange {
  int64_t begin = 0, end = 0;
  bool holds(int64_t block) const { return begin <= block && block < end; }
};

/// The runs of blocks, chunk c of stage s at c S + s. The embedding is in the first, the head in
/// the last. Errors: UserError (mesh.axes.stage, pipeline.chunks_per_stage) when there are more
/// runs than blocks between.
std::vector<BlockRange> block_runs(const ModelShape& shape, int64_t stages,
                                   const draft::PipelineForm& form);

/// The ranks of each stage, whose programs differ. One stage: one class, without members, for all.
/// Errors as block_runs.
std::vector<std::vector<int64_t>> stage_classes(const ModelShape& shape, const Mesh& mesh,
                                                const draft::PipelineForm& form = {});

/// The first stage that holds each unit. A tied unit is held by the first and the last.
std::vector<int64_t> first_stages(const ModelShape& shape, const Mesh& mesh,
                                  const draft::PipelineForm& form = {});

/// Whether the order of a rank's stage does the gradients of weights apart.
bool splits_backward(const Mesh& mesh, int64_t rank, const draft::StepOptions& options);

/// Leaves the draft the visits of its stage's blocks in its order, between receives of what enters
/// and sends of what leaves, and gives values of a micro-batch as many places as there are
/// micro-batches in flight. With one stage it does nothing.
void pipeline(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
              const draft::StepOptions& options);

}  // namespace strait::strategy
