// A step's end at which no rank waits for the others: a rank updates by what it knows itself, and
// the next step finds out whether that was right (Qi et al. 2024, arXiv 2401.10241, section 4).
#pragma once

#include "strait/draft/draft.h"

namespace strait::strategy {

/// Ends a step of training whose gradients are final, in place of norm, clip factor and update:
///
/// * The rank keeps a copy of its shards of weights and moments and updates at once, unscaled, if
///   its own part of the gradients has nothing against it. Then the sum over all ranks starts, a
///   carry that the next step takes over.
/// * The next step validates behind its first forwards, before it writes a gradient: those of this
///   one stand until then. Where all ranks together clip or skip, every rank takes its copies back
///   and updates by what all agree on: bit for bit what an update behind the sum would have been.
///   The rest of the step under way is void: it changes neither weights nor counters, and the
///   trainer runs it again.
///
/// Memory: the optimizer's shards of weights and moments once more, per rank. Time: their bytes
/// copied per step; a wrong guess costs a step.
void postpone(draft::Draft& draft);

/// Leaves of the step what validates the one before, and what brings its weights to all: for the
/// end of the run and whoever looks at weights between steps.
void validate_alone(draft::Draft& draft);

}  // namespace strait::strategy
