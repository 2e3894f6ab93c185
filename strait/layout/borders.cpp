#include "strait/layout/borders.h"

#include <algorithm>

namespace strait {
namespace {

/// The largest bytes(begin, end) of a part; without borders that of a whole one.
template <class BytesOf>
int64_t largest(const codec::BorderedCodec& codec, const program::Partition& partition,
                const BytesOf& bytes) {
  if (codec.borders.empty()) return bytes(0, partition.grain);
  int64_t most = 0;
  for (int64_t part = 0; part * partition.grain < partition.elements; ++part)
    most = std::max(most, bytes(partition.begin(part), partition.end(part)));
  return most;
}

}  // namespace

std::vector<int64_t> borders_of(const ModelShape& shape, int64_t unit) {
  std::vector<int64_t> borders;
  if (shape.x == 1 && shape.y == 1) return borders;
  const Section* before = nullptr;
  for (const Section& section : shape.units[static_cast<size_t>(unit)].sections) {
    if (before != nullptr &&
        (before->split_x != section.split_x || before->split_y != section.split_y))
      borders.push_back(section.begin);
    before = &section;
  }
  return borders;
}

codec::BorderedCodec bordered_codec(const codec::CodecSpec& codec, const ModelShape& shape,
                                    int64_t unit, const program::Partition& partition) {
  codec::BorderedCodec bordered{codec};
  if (codec::is_of_layers(codec)) return bordered;
  if (codec::metadata_bytes(codec, 1) > 0) bordered.borders = borders_of(shape, unit);
  bordered.scale_bytes = largest(bordered, partition, [&](int64_t begin, int64_t end) {
    return bordered.metadata_bytes(begin, end);
  });
  return bordered;
}

int64_t longest_piece(const codec::BorderedCodec& codec, const program::Partition& partition,
                      Dtype dtype) {
  return largest(codec, partition, [&](int64_t begin, int64_t end) {
    return codec.encoded_bytes(begin, end, dtype);
  });
}

}  // namespace strait
