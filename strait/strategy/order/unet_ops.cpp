#include "strait/strategy/order/unet_ops.h"

#include <fmt/format.h>

#include "strait/draft/block_kernels.h"
#include "strait/shape/modules.h"
#include "strait/shape/unet_work.h"

namespace strait::strategy {

using program::Access;
using program::Op;
using program::Operand;

namespace {

UnetValue value_at(int number) { return static_cast<UnetValue>(number); }
bool has(const UnetValueSet& set, UnetValue value) { return set[static_cast<size_t>(value)]; }

}  // namespace

UnetOps::UnetOps(program::Program& program, const ModelShape& shape,
                 const draft::StepOptions& options, const ChainArrays& arrays)
    : options_(options), arrays_(arrays) {
  agreed_ = draft::find_array(program, "agreed");
  step_ = draft::find_array(program, "step");
  for (int64_t block = 0; block < std::ssize(shape.blocks); ++block) {
    const UnetParts& parts = parts_.emplace_back(shape.modules->unet, block, shape.x, shape.y);
    Arrays& values = values_.emplace_back();
    Arrays& gradients = gradients_.emplace_back();
    values.fill(-1);
    gradients.fill(-1);
    for (int number = 0; number < kNumUnetValues && parts.is_shared(); ++number) {
      const UnetValue value = value_at(number);
      const auto declare = [&](const char* ending, Dtype dtype) {
        return draft::declare(
            program, {fmt::format("{}{}.{}", unet_value_name(value), ending, block), 1, dtype,
                      options.micro_batch_size * parts.elements(value)});
      };
      const auto at = static_cast<size_t>(number);
      if (parts.is_kept(value))
        values[at] = declare("", UnetParts::kept_dtype(value, options.dtype));
      if (parts.is_cut(value) && trains())
        gradients[at] = declare("_gradient", UnetParts::gradient_dtype(value, options.dtype));
    }
  }
}

std::vector<Op> UnetOps::forward(int64_t block, const BlockEnds& ends) const {
  UnetValueSet begun;
  std::vector<Op> ops;
  for (const UnetOp& op : parts(block).forward()) ops.push_back(make_op(op, block, ends, begun));
  return ops;
}

std::vector<Op> UnetOps::backward(int64_t block, const BlockEnds& ends) const {
  UnetValueSet begun;
  std::vector<Op> ops;
  for (const UnetOp& op : parts(block).backward()) ops.push_back(make_op(op, block, ends, begun));
  return ops;
}

std::vector<Op> UnetOps::loss(const BlockEnds& ends) const {
  const int64_t block = std::ssize(parts_) - 1;
  std::vector<Op> ops = forward(block, ends);
  if (!trains()) return ops;
  ops.pop_back();  // the loss, which comes with its gradient
  for (Op& op : backward(block, ends)) ops.push_back(std::move(op));
  return ops;
}

std::vector<Operand> UnetOps::frees(int64_t block) const {
  std::vector<Operand> freed;
  for (const auto* arrays : {&values_, &gradients_})
    for (const int array : (*arrays)[static_cast<size_t>(block)])
      if (array >= 0) freed.push_back({array, {}});
  return freed;
}

/// `begun`: of what the visit has made gradients already.
Op UnetOps::make_op(const UnetOp& from, int64_t block, const BlockEnds& ends,
                    UnetValueSet& begun) const {
  Op op = draft::block_op(draft::unet_kernel(from.value, from.backward), block, {0, 1});
  op.attributes[draft::kBatch] = options_.micro_batch_size;
  op.attributes[draft::kLength] = options_.tokens;
  op.attributes[draft::kTraining] = int64_t{trains() ? 1 : 0};
  draft::set_flops(op, from.flops * static_cast<double>(options_.micro_batch_size));
  draft::set_library(op, unet_work(parts(block), from, options_.micro_batch_size, options_.dtype));
  const auto add = [&](const Operand& value, Access access, int slot) {
    draft::add_operand(op, value.array, value.index, access, slot);
  };
  const auto make = [&](UnetValue value, const Operand& gradient, int slot) {
    add(gradient, has(begun, value) ? Access::kUpdate : Access::kWrite, slot);
    begun.set(static_cast<size_t>(value));
  };
  add({arrays_.batch, {}}, Access::kRead, draft::kTokens);
  const bool first = block == 0, last = block + 1 == std::ssize(parts_);
  const bool is_output = from.value == UnetValue::kOutput;
  if (first || (last && is_output)) add({arrays_.sequences, {}}, Access::kRead, draft::kSequences);
  if (has(from.reads, UnetValue::kInput) && ends.input)
    add(*ends.input, Access::kRead, draft::kInput);
  if (last && is_output) {
    if (from.backward) add({step_, {}}, Access::kRead, draft::kStepValues);
    add({agreed_, {}}, Access::kAdd, draft::kAgreed);
  } else if (is_output) {
    from.backward ? add(*ends.output_gradient, Access::kRead, draft::kOutputGradient)
                  : add(*ends.output, Access::kWrite, draft::kOutput);
  }
  for (int number = 0; number < kNumUnetValues; ++number) {
    const UnetValue value = value_at(number);
    const Operand kept{values_[static_cast<size_t>(block)][static_cast<size_t>(number)], {}};
    const Operand gradient{gradients_[static_cast<size_t>(block)][static_cast<size_t>(number)], {}};
    if (has(from.reads, value)) add(kept, Access::kRead, draft::unet_slot(value, false));
    if (has(from.gradients, value)) make(value, gradient, draft::unet_slot(value, true));
    if (value != from.value) continue;
    from.backward ? add(gradient, Access::kRead, draft::unet_slot(value, true))
                  : add(kept, Access::kWrite, draft::unet_slot(value, false));
  }
  if (has(from.gradients, UnetValue::kInput))
    make(UnetValue::kInput, *ends.input_gradient, draft::kInputGradient);
  return op;
}

}  // namespace strait::strategy
