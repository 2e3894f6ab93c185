// The pass that says who computes what when: the chain of blocks forward and, in training,
// backward, one micro-batch after another. Transformer blocks are cut wherever a sum over ranks
// may stand; where rows are split over x (shape/segment.h), the transfers of rows stand there, of
// no group yet.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// Declares the batch, activations, their gradients, what is saved and what passes inside blocks,
/// and fills the schedule for the purpose of the options. The scalars "agreed" and "step" are
/// declared. `shape` outlives the draft.
void order(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options);

}  // namespace strait::strategy
