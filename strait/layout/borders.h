// Where blocks of codecs end in a unit that ranks of x or y share.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/codec/borders.h"
#include "strait/program/program.h"
#include "strait/shape/shape.h"

namespace strait {

/// Where elements that all ranks of x, or of y, hold meet those that each holds alone; `shape` is
/// that of one rank. Empty where neither axis has ranks.
std::vector<int64_t> borders_of(const ModelShape& shape, int64_t unit);

/// The codec of pieces that are parts of a unit under `partition`, with the unit's borders where it
/// has scales.
codec::BorderedCodec bordered_codec(const codec::CodecSpec& codec, const ModelShape& shape,
                                    int64_t unit, const program::Partition& partition);
/// Bytes of the longest piece.
int64_t longest_piece(const codec::BorderedCodec& codec, const program::Partition& partition,
                      Dtype dtype = Dtype::kFloat32);

}  // namespace strait
