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
//
// Where rows are split (tensor.sequence_parallel; Korthikanti et al. 2022) each sum over x is a
// reduce-scatter, and an all-gather stands before the next product: together as many bytes (beside
// bf16 fewer, where fp32 sums were summed and bf16 norms are gathered). The backward gathers both
// norms' results once more, half a sum each, unless the block was computed again just before. What
// is replicated over x, and so split: shape/segment.h. Moments summed over y are 1 / x as many.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Puts an all-reduce over x or y behind every op that makes part of a sum, on a lane of that axis,
/// and says among whom the draft's transfers of rows are.
/// The draft's ops are those of a rank's part (Layout::local_shape). With one rank along both axes
/// it does nothing. options.hides_sums (AxoNN's OAR): behind the sum of a gradient of activations
/// come the gradients of the matrices that can be made by then, so that it has something to hide
/// behind; of y, that of the activated values has nothing. Where rows are split, the first of them
/// stands behind a scatter, the next behind the gather that follows. The bits are the same.
void grid(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
          const draft::StepOptions& options);

}  // namespace strait::strategy
