// The pass that shares every transformer block among the ranks of mesh axis "x" (tensor
// parallelism; Shoeybi et al., "Megatron-LM", 2019, section 3). Each rank holds some heads and some
// channels of the MLP, and makes a part of four sums per block and micro-batch. Embedding and head
// are computed alike by all of them.
//
// Cost per block and micro-batch: four all-reduces of batch * tokens * width numbers among x ranks.
// Two are the forward's (fp32 beside bf16), two the backward's (the activations' type); recomputing
// adds one of the forward's. A ring moves 2 (x - 1) times such a vector, all ranks together.
#pragma once

#include "strait/draft/draft.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Puts an all-reduce over x behind every op that makes part of a sum, on a lane of its own, and
/// has the ranks of x count their batch and its loss once. The draft's ops are those of a rank's
/// part (Layout::local_shape). With one rank along x it does nothing.
void grid(draft::Draft& draft, const Cluster& cluster);

}  // namespace strait::strategy
