#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/model/decoder_blocks.h"

namespace strait::model {

int64_t parameter_offset(const UnitShape& unit, const std::string& name) {
  for (const ParameterShape& parameter : unit.parameters) {
    if (parameter.name == name) return parameter.offset;
  }
  return -1;
}

void check_call(const Call& call, Dtype dtype) {
  ensure(call.settings != nullptr && call.batch != nullptr,
         "block: settings and batch must be given");
  ensure(call.settings->dtype == dtype, "block: Settings::dtype differs from the model's");
}

namespace {

/// A block of `shape` on elements of `dtype` (fp32, fp64 or bf16). kCustom gives null: the caller sets it.
std::unique_ptr<Block> make_block(const ModelShape& shape, int64_t index, Dtype dtype,
                                  const std::shared_ptr<const RotaryAngles>& angles) {
  if (dtype != Dtype::kFloat32 && dtype != Dtype::kFloat64 && dtype != Dtype::kBfloat16) {
    throw UserError(
        fmt::format("a model computes in fp32, bf16 or fp64, not in {}", dtype_name(dtype)));
  }
  switch (shape.blocks.at(static_cast<size_t>(index)).kind) {
    case BlockKind::kEmbedding:
      return make_embedding_block(shape, index, dtype);
    case BlockKind::kTransformer:
      return make_transformer_block(shape, index, dtype, angles);
    case BlockKind::kHead:
      return make_head_block(shape, index, dtype);
    case BlockKind::kCustom:
      break;
  }
  return nullptr;
}

}  // namespace

Model::Model(ModelShape shape, Dtype dtype) : shape_(std::move(shape)) {
  std::shared_ptr<const RotaryAngles> angles;
  if (shape_.style.rotary) angles = std::make_shared<const RotaryAngles>(shape_.options, dtype);
  for (size_t index = 0; index < shape_.blocks.size(); ++index) {
    blocks_.push_back(make_block(shape_, static_cast<int64_t>(index), dtype, angles));
  }
}

}  // namespace strait::model
