// Table entries of what neighbours do that exchange heads for some of a batch's documents. No
// LibTorch; executors stand in strait/execute.
#pragma once

#include "strait/draft/block_kernels.h"
#include "strait/shape/segment.h"

namespace strait::draft {

/// The first eight steps, for kGroup of the documents that a plan spreads over ranks and the
/// neighbour kRound of its run: model::SegmentedBlock::exchange_heads. Of all but moved_rows they
/// touch a part.
const program::Kernel& exchange_kernel(RemapStep step);
inline constexpr int kNumExchangeSteps = 8;

}  // namespace strait::draft
