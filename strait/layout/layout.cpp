#include "strait/layout/layout.h"

#include <algorithm>

#include "strait/base/errors.h"

namespace strait {

program::Partition split_unit(int64_t elements, int64_t span, int64_t world) {
  ensure(span >= 1 && world >= span && world % span == 0,
         "split_unit: the span must divide the world");
  if (span == 1) return {elements, elements};
  const int64_t exact = (elements + world - 1) / world;
  const int64_t grain = (exact + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
  return {elements, grain * (world / span)};
}

Range shard_of(int64_t elements, int64_t span, int64_t world, int64_t rank) {
  const program::Partition partition = split_unit(elements, span, world);
  const int64_t part = rank % span;
  return {partition.begin(part), partition.end(part)};
}

Range updated_range(const program::Program& program, const program::Op& op, int64_t rank) {
  const int64_t part = program.groups[op.group].part(rank);
  return {op.partition.begin(part), op.partition.end(part)};
}

Range counted_range(const program::Program& program, const program::Op& op, int64_t rank) {
  const program::Group& group = program.groups[op.group];
  const int64_t replicas = program.ranks / group.parts();
  const Range held = updated_range(program, op, rank);
  const int64_t full = group.parts() == 1
                           ? split_unit(op.partition.elements, replicas, replicas).grain
                           : op.partition.grain / replicas;
  const int64_t begin = held.begin + rank / group.parts() * full;
  return {std::min(begin, held.end), std::min(begin + full, held.end)};
}

}  // namespace strait
