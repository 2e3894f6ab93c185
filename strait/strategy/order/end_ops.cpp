#include "strait/strategy/order/end_ops.h"

#include <utility>

#include "strait/draft/block_kernels.h"

namespace strait::strategy {

using draft::StepOptions;
using program::Access;
using program::Op;
using program::Operand;

EndOps::EndOps(program::Program& program, const ModelShape& shape, const StepOptions& options,
               const ChainArrays& arrays)
    : shape_(shape), options_(options), arrays_(arrays) {
  const int64_t rows = options.micro_batch_size * options.tokens;
  for (int number = 0; number < kNumEndValues; ++number) {
    const auto value = static_cast<EndValue>(number);
    const int64_t elements = end_value_elements(value, shape, rows);
    if (elements == 0) continue;
    values_[static_cast<size_t>(number)] = draft::declare(
        program, {end_value_name(value), 1, end_value_dtype(value, options.dtype), elements});
  }
  agreed_ = draft::find_array(program, "agreed");
  step_ = draft::find_array(program, "step");
}

std::vector<Op> EndOps::embedding() const {
  return {make_op(EndStep::kLookUp, 0), make_op(EndStep::kEmbed, 0)};
}

std::vector<Op> EndOps::head() const {
  const bool trains = options_.purpose == draft::Purpose::kTrain;
  const int64_t block = static_cast<int64_t>(shape_.blocks.size()) - 1;
  std::vector<Op> ops;
  for (const EndStep step : head_steps(shape_, trains)) ops.push_back(make_op(step, block));
  return ops;
}

std::vector<Operand> EndOps::frees(const std::vector<Op>& ops) const {
  std::vector<Operand> freed;
  for (const Op& op : ops)
    for (const Operand& written : op.writes)
      if (written.slot >= draft::kEndValues && written.access == Access::kWrite)
        freed.push_back(written);
  return freed;
}

Op EndOps::make_op(EndStep step, int64_t block) const {
  Op op = draft::block_op(draft::end_kernel(step), block, {0, 1});
  op.attributes[draft::kBatch] = options_.micro_batch_size;
  op.attributes[draft::kLength] = options_.tokens;
  op.attributes[draft::kTraining] = int64_t{options_.purpose == draft::Purpose::kTrain ? 1 : 0};
  draft::set_flops(op, end_flops(step, shape_, options_.micro_batch_size * options_.tokens));
  op.reads.push_back({arrays_.batch, {}, Access::kRead, draft::kTokens});
  add_ends(op, step);
  add_values(op, step);
  return op;
}

/// What enters and leaves the blocks.
void EndOps::add_ends(Op& op, EndStep step) const {
  const int64_t last = static_cast<int64_t>(shape_.blocks.size()) - 2;
  const auto add = [&](int array, int64_t index, Access access, int slot) {
    draft::add_operand(op, array, {index}, access, slot);
  };
  const bool trains = options_.purpose == draft::Purpose::kTrain;
  if (step == EndStep::kEmbed) {
    add(arrays_.sequences, 0, Access::kRead, draft::kSequences);
    add(arrays_.activation, 0, Access::kWrite, draft::kOutput);
  }
  if (step == EndStep::kMoments || step == EndStep::kLogits || step == EndStep::kSlopes ||
      step == EndStep::kGradient)
    add(arrays_.activation, last, Access::kRead, draft::kInput);
  if (step == EndStep::kLoss) {
    if (trains) add(step_, 0, Access::kRead, draft::kStepValues);
    add(agreed_, 0, Access::kAdd, draft::kAgreed);
  }
  if (step == EndStep::kGradient)
    add(arrays_.gradient, last, Access::kWrite, draft::kInputGradient);
}

void EndOps::add_values(Op& op, EndStep step) const {
  const bool trains = options_.purpose == draft::Purpose::kTrain;
  const int64_t rows = options_.micro_batch_size * options_.tokens;
  const auto add = [&](const std::vector<EndValue>& values, Access access) {
    for (const EndValue value : values)
      if (end_value_elements(value, shape_, rows) > 0)
        draft::add_operand(op, values_[static_cast<size_t>(value)], {}, access,
                           draft::end_slot(value));
  };
  const EndUses& uses = end_uses(step);
  add(uses.reads, Access::kRead);
  if (trains || step != EndStep::kLoss) add(uses.writes, Access::kWrite);
  if (trains) add(uses.updates, Access::kUpdate);
}

}  // namespace strait::strategy
