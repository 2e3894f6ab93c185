// The pass that says what a step begins and ends with: scalars, norm, clipping, update, publishing.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"

namespace strait::strategy {

/// Declares the scalars and, where something is computed, begins the step with them.
void begin(draft::Draft& draft, const draft::StepOptions& options);

/// Training: squared norms of the shards, agreement of all ranks, clip factor, update, publishing,
/// and what the next step starts from. Evaluation: agreement. Publishing alone where that is the
/// purpose.
void finish(draft::Draft& draft, const draft::StepOptions& options);

}  // namespace strait::strategy
