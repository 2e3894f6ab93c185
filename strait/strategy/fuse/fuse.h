// The pass that joins what nothing separates: in every visit, neighbouring ranges of a transformer
// block's segments become one op, and a whole block becomes the fused one, which needs less memory.
// It runs behind the passes that put transfers inside blocks, and before the one that places units:
// what that one adds stands around visits, so that nothing comes between their ops any more.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// Rewrites the micro-steps of the draft's schedule. Values that no op names any more are not freed
/// either. Applied again it changes nothing. `shape` outlives the draft.
void fuse(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options);

}  // namespace strait::strategy
