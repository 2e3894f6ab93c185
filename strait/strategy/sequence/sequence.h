// The pass for ranks that share every sequence (mesh axis "sequence"): context parallelism with
// gathered keys (Llama 3, Dubey et al. 2024). Zig-zag chunks make causal work even without padding;
// everything but attention sees a rank's tokens only.
//
// Cost per transformer block and micro-batch, g ranks, s tokens of all sequences, k columns of
// keys, e bytes of an activation, a of a sum of gradients: all ranks together move (g - 1) s 2k e
// in the forward, and in the backward that again, for keys are not kept, and (g - 1) s 2k a. Each
// rank holds the keys of all while it attends.
#pragma once

#include "strait/draft/draft.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Puts packing and an all-gather of keys before every op that attends, and behind its backward a
/// reduce-scatter of their gradients, on a lane of the axis. A backward that computes its forward
/// again gathers once for both. The draft's ops are those of a rank's part (Layout::local_shape).
/// With one rank along the axis it does nothing.
void share_sequences(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster);

}  // namespace strait::strategy
