// The compressed all-reduce of every-step training: which parameters of a unit are sent in which
// codec. Source: torch_cgx, whose layers are compressed one by one and whose one-dimensional and
// small ones are not.
#pragma once

#include <vector>

#include "strait/codec/runs.h"
#include "strait/config/run.h"
#include "strait/shape/shape.h"
#include "strait/strategy/sharding/placement.h"

namespace strait::strategy {

/// [unit] how the sum of its gradient over `parts` ranks is sent; empty without compression.codec.
/// Parameters of several dims and at least skip_below_elements are encoded by themselves, the
/// others are sent as they are.
std::vector<codec::Runs> layer_codecs(const CompressionOptions& options, const ModelShape& shape,
                                      int64_t parts);

/// Moves compression.codec to where the gradients' codec stands. Errors: UserError with the nearest
/// valid choice for a codec, placement, mesh or policy that cannot use it, and for the other keys
/// of the section without a codec.
void read_compression(const Run& run, Placement& placement);

/// UserError where none of `layers`, which layer_codecs gave, is sent in compression.codec; none of
/// no layers.
void require_compressed_layer(const Run& run, const ModelShape& shape,
                              const std::vector<codec::Runs>& layers);

}  // namespace strait::strategy
