#include "strait/layout/layout.h"

#include "strait/base/errors.h"

namespace strait {

program::Partition split_unit(int64_t elements, int64_t span, int64_t world) {
  ensure(span >= 1 && world >= span && world % span == 0, "split_unit: the span must divide the world");
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

}  // namespace strait
