// The pass that takes apart, where rows are split over mesh axis "x" (tensor.sequence_parallel),
// every pair of a product and the exchange of its rows: the gather of what it takes and the
// product, the product and the scatter of what it makes. FLUX (Chang et al. 2024), whose two fused
// kernels these pairs are; here the tiles are operations of a program, and values are its flags.
//
// Per transformer block: qkv and up behind gathers in the forward, down and output in the backward;
// output and down before scatters in the forward, up and qkv in the backward. Of n ranks, rank r
// takes shards in the order r, r + 1, ... of a gather, its own first, and of a scatter r + 1, r +
// 2,
// ..., its own last, so that at no time two ranks have the same peer (n circles of shifts). The
// tile of communication is 1 / C of a shard: (n - 1) C shifts take the place of a collective, and
// bytes are those of its direct form. What comes for a scatter is added up in the order of ranks.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Rewrites the micro-steps of a draft whose ranges of segments are joined and whose rows are
/// split. A gathered value becomes joined values of the group, which a product reads shard by shard
/// and others as one; so does what is scattered, and what has come of it. Where nothing is gained
/// (shard_chunks.h), and where others exchange the same value, it stays. `shape` outlives the
/// draft.
void shards(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
            const draft::StepOptions& options);

}  // namespace strait::strategy
