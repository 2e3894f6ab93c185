// The hand-written blocks of GPT-2, Llama and the families like it. Internal to model/: the Model
// makes them.
#pragma once

#include <memory>

#include "strait/model/block.h"
#include "strait/model/rotary_angles.h"

namespace strait::model {

std::unique_ptr<Block> make_embedding_block(const ModelShape& shape, int64_t index, Dtype dtype);
/// `angles` are those of the block's layer_form; null where positions are learned.
std::unique_ptr<Block> make_transformer_block(const ModelShape& shape, int64_t index, Dtype dtype,
                                              std::shared_ptr<const RotaryAngles> angles);
std::unique_ptr<Block> make_head_block(const ModelShape& shape, int64_t index, Dtype dtype);
/// Of a model that ranks share: its steps alone.
std::unique_ptr<Block> make_shared_head(const ModelShape& shape, int64_t index, Dtype dtype);

/// Offset of `name` in the unit, -1 when the unit has no such parameter (no biases).
int64_t parameter_offset(const UnitShape& unit, const std::string& name);

/// Where a head finds its parameters in its unit; -1 = has none.
struct HeadOffsets {
  int64_t matrix = 0, norm_weight = 0, norm_bias = -1;
};
/// Of block `index`; the matrix is that of the embedding where it is tied.
HeadOffsets head_offsets(const ModelShape& shape, int64_t index);

/// The parameter at `offset` of a flat unit, null when absent.
template <class T>
const T* at_offset(const void* unit, int64_t offset) {
  return offset < 0 ? nullptr : static_cast<const T*>(unit) + offset;
}
template <class T>
T* at_offset(void* unit, int64_t offset) {
  return offset < 0 ? nullptr : static_cast<T*>(unit) + offset;
}

/// InternalError unless the call's element type is the block's and the batch is there.
void check_call(const Call& call, Dtype dtype);
void check_call(const SegmentCall& call, Dtype dtype);

}  // namespace strait::model
