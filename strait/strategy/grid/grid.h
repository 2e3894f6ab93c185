// The pass that shares every block among the ranks of mesh axes "x" and "y": the three-dimensional
// scheme of AxoNN (Singh et al. 2023), whose third axis is the placement's (mesh.axes.z). Ranks of
// x have some heads, channels and tokens of the vocabulary, ranks of y some columns of the residual
// stream. With y = 1 that is tensor parallelism as in Megatron-LM (Shoeybi et al. 2019).
//
// Cost per transformer block and micro-batch, b s tokens, widths h (residual), q (qkv), a
// (attention), u (up), f (MLP): the ranks of x sum b s h / y numbers four times, twice in the
// forward (fp32 beside bf16) and twice in the backward; the ranks of y sum b s (q + u) / x in the
// forward (fp32 beside bf16), b s (a + f) / x in the backward, and the moments of two norms in
// each. Embedding and head: docs/algorithms.md. A ring moves 2 (n - 1) times such a vector, all n
// ranks together.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Puts an all-reduce over x or y behind every op that makes part of a sum, on a lane of that axis.
/// The draft's ops are those of a rank's part (Layout::local_shape). With one rank along both axes
/// it does nothing. options.hides_sums (AxoNN's OAR): behind the sum of a gradient of activations
/// come the gradients of the matrices that can be made by then, so that it has something to hide
/// behind; of y, that of the activated values has nothing. The bits are the same.
void grid(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
          const draft::StepOptions& options);

}  // namespace strait::strategy
