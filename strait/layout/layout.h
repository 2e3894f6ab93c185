// Which rank holds which range of which unit, for any span. Checkpoints and builders read it.
#pragma once

#include <cstdint>

#include "strait/program/program.h"

namespace strait {

/// Borders of shards are multiples of this many elements, so that vector kernels start aligned.
inline constexpr int64_t kShardAlignment = 16;

/// Split of a unit of `elements` elements over a span of `span` ranks of a world of `world` data ranks
/// (span divides world). The finest split (span == world) has grain ceil(elements / world) rounded up to
/// kShardAlignment; a coarser one joins world / span neighbours, so shards of all spans nest. The last
/// parts may be shorter or empty; nothing is padded.
program::Partition split_unit(int64_t elements, int64_t span, int64_t world);

/// Range [begin, end) of elements.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

/// Which range of a unit one rank holds under a span: part rank % span of split_unit. Spans are groups of
/// neighbouring ranks.
Range shard_of(int64_t elements, int64_t span, int64_t world, int64_t rank);

/// Range of a unit that `rank` updates: part(rank) of op.partition in op.group. `op` is an update
/// or a squared norm.
Range updated_range(const program::Program& program, const program::Op& op, int64_t rank);

/// Range of a unit that `rank` alone counts for the gradient norm: its updated range split again over the
/// replicas that hold the same one. The ranges of all ranks tile the unit, whatever the placement; ranks in
/// order tile it in order when there is one replica or when nothing is split.
Range counted_range(const program::Program& program, const program::Op& op, int64_t rank);

}  // namespace strait
