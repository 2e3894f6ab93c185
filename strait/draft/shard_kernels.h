// Table entries of what is done shard by shard where rows are split over x (shape/segment.h). No
// LibTorch; executors stand in strait/execute.
#pragma once

#include "strait/draft/block_kernels.h"
#include "strait/shape/segment.h"

namespace strait::draft {

/// What kForwardRows and kBackwardInputRows are, for rows of a shard (kRows): those of the rank so
/// many positions behind (kShard), in a circle. Of qkv and up also with the add behind them, of
/// down with up_add. Joined values of a group (program/shares.h): what is named of them are these
/// rows.
extern const program::Kernel kForwardShard;
extern const program::Kernel kBackwardInputShard;
/// Integer.
inline constexpr int kShard = kRows + 1;

const program::Kernel& shard_kernel(Phase phase);
bool works_on_shard(const program::Op& op);

/// The sum, over ranks and in their order, of what they made of this rank's rows: its own part and
/// what has come from the others, both joined values of a group.
extern const program::Kernel kSumShards;
enum SumShardsOperand : int { kOwnShard, kReceivedShards, kShardSum };

}  // namespace strait::draft
