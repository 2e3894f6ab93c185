// The pass for ranks that share every sequence (mesh axis "sequence"): context parallelism with
// gathered keys (Llama 3, Dubey et al. 2024) or a ring (Liu et al. 2023). Zig-zag chunks make
// causal work even without padding; everything but attention sees a rank's tokens only.
//
// Cost per transformer block and micro-batch, g ranks, s tokens of all sequences, k columns of
// keys, e bytes of an activation, a of a sum of gradients: all ranks together move (g - 1) s 2k e
// in the forward, and in the backward that again, for keys are not kept, and (g - 1) s 2k a. Of
// keys a rank holds those of all while it attends, in a ring those of two ranks. A ring's
// transfers stand beside its rounds, of which the backward has one half of the rank's own at either
// end.
//
// What a rank holds of its own while it attends again is not more than what one rank's fused
// backward has as scratch: gradients of weights behind attention are made before its backward, and
// what the forward has kept for them is gone by then.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Rewrites every op that attends as the model's engine says: exchange.h. The draft's ops are those
/// of a rank's part (Layout::local_shape). With one rank along the axis it does nothing.
void share_sequences(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
                     const draft::StepOptions& options);

/// Behind all passes that rewrite visits: where sequences are shared, what a visit frees ends with
/// the last of its ops that names it.
void end_values(draft::Draft& draft);

}  // namespace strait::strategy
