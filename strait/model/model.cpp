#include <fmt/format.h>

#include <array>
#include <cstddef>

#include "strait/base/errors.h"
#include "strait/model/decoder_blocks.h"
#include "strait/model/module_blocks.h"
#include "strait/model/unet_blocks.h"

namespace strait::model {

int64_t parameter_offset(const UnitShape& unit, const std::string& name) {
  for (const ParameterShape& parameter : unit.parameters) {
    if (parameter.name == name) return parameter.offset;
  }
  return -1;
}

HeadOffsets head_offsets(const ModelShape& shape, int64_t index) {
  const int64_t number = shape.blocks[static_cast<size_t>(index)].unit;
  const UnitShape& unit = shape.units[static_cast<size_t>(number)];
  const char* matrix = shape.options.tied_head ? "embedding.token.weight" : "head.weight";
  return {unit.parameter(matrix).offset, unit.parameter("head.norm.weight").offset,
          parameter_offset(unit, "head.norm.bias")};
}

namespace {

void check_settings(const Settings* settings, const Batch* batch, Dtype dtype) {
  ensure(settings != nullptr && batch != nullptr, "block: settings and batch must be given");
  ensure(settings->dtype == dtype, "block: Settings::dtype differs from the model's");
}

}  // namespace

void Block::run_step(const Call&, EndStep step, const EndValues&) const {
  throw InternalError(fmt::format("a block without the step {}", end_step_name(step)));
}

void check_call(const Call& call, Dtype dtype) { check_settings(call.settings, call.batch, dtype); }

void check_call(const SegmentCall& call, Dtype dtype) {
  check_settings(call.settings, call.batch, dtype);
}

void SegmentCall::give(const ValueOffsets& offsets, const void* base, Dtype dtype) {
  for (size_t value = 0; value < values.size(); ++value)
    if (offsets.at[value] >= 0)
      give(static_cast<BlockValue>(value),
           static_cast<const std::byte*>(base) + offsets.at[value] * dtype_bytes(dtype));
}

ValueSet SegmentCall::given() const {
  ValueSet set;
  for (size_t value = 0; value < values.size(); ++value) set[value] = values[value] != nullptr;
  return set;
}

namespace {

[[noreturn]] void refuse_token(const char* kind, const Batch& batch, int64_t row, int32_t token,
                               const std::string& valid) {
  throw UserError(fmt::format(
      "{} {} at position {} of sequence {} of the batch is outside the vocabulary of {}", kind,
      token, row % batch.tokens, row / batch.tokens, valid));
}

}  // namespace

void check_tokens(const Batch& batch, int64_t vocabulary) {
  for (int64_t row = 0; row < batch.batch * batch.tokens; ++row)
    if (const int32_t token = batch.inputs[row]; token < 0 || token >= vocabulary)
      refuse_token("token", batch, row, token,
                   fmt::format("{} tokens (0 to {})", vocabulary, vocabulary - 1));
}

void check_targets(const Batch& batch, int64_t vocabulary) {
  for (int64_t row = 0; row < batch.batch * batch.tokens; ++row)
    if (const int32_t target = batch.targets[row]; target < -1 || target >= vocabulary)
      refuse_token(
          "target token", batch, row, target,
          fmt::format("{} tokens (0 to {}, or -1 for not counted)", vocabulary, vocabulary - 1));
}

namespace {

/// A block of `shape` on elements of `dtype` (fp32, fp64 or bf16). kCustom gives a module of
/// the shape; without modules null: the caller sets it.
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
      if (!shape.modules) break;
      return shape.modules->unet ? make_unet_block(shape, index, dtype)
                                 : make_module_block(shape, index, dtype);
      break;
  }
  return nullptr;
}

}  // namespace

Model::Model(ModelShape shape, Dtype dtype) : shape_(std::move(shape)) {
  std::array<std::shared_ptr<const RotaryAngles>, 2> angles;  // of blocks without, with a window
  for (size_t at = 0; at < shape_.blocks.size(); ++at) {
    const auto index = static_cast<int64_t>(at);
    const LayerForm form = layer_form(shape_, index);
    std::shared_ptr<const RotaryAngles>& table = angles[form.window > 0 ? 1 : 0];
    if (shape_.style.rotary && shape_.blocks[at].kind == BlockKind::kTransformer && !table)
      table = std::make_shared<const RotaryAngles>(shape_.options, form.rope, dtype);
    blocks_.push_back(make_block(shape_, index, dtype, table));
  }
}

}  // namespace strait::model
