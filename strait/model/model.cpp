#include <fmt/format.h>

#include "strait/base/errors.h"
#include "strait/model/gpt2_blocks.h"

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

std::unique_ptr<Block> make_block(const ModelShape& shape, int64_t index, Dtype dtype) {
  if (dtype != Dtype::kFloat32 && dtype != Dtype::kFloat64 && dtype != Dtype::kBfloat16) {
    throw UserError(
        fmt::format("a model computes in fp32, bf16 or fp64, not in {}", dtype_name(dtype)));
  }
  switch (shape.blocks.at(static_cast<size_t>(index)).kind) {
    case BlockKind::kEmbedding:
      return make_embedding_block(shape, index, dtype);
    case BlockKind::kTransformer:
      return make_transformer_block(shape, index, dtype);
    case BlockKind::kHead:
      return make_head_block(shape, index, dtype);
    case BlockKind::kCustom:
      break;
  }
  return nullptr;
}

Model::Model(ModelShape shape, Dtype dtype) : shape_(std::move(shape)) {
  for (size_t index = 0; index < shape_.blocks.size(); ++index) {
    blocks_.push_back(make_block(shape_, static_cast<int64_t>(index), dtype));
  }
}

}  // namespace strait::model
