#include "strait/strategy/order/end_ops.h"

#include <algorithm>
#include <string>
#include <utility>

#include "strait/draft/block_kernels.h"
#include "strait/draft/segment_ops.h"

namespace strait::strategy {

using draft::StepOptions;
using program::Access;
using program::Op;
using program::Operand;

namespace {

/// Whether a step works on a rank's rows, where these are split.
bool works_by_rows(EndStep step) {
  return step == EndStep::kEmbed || step == EndStep::kMoments || step == EndStep::kNorm ||
         step == EndStep::kSlopes || step == EndStep::kNormGradient;
}

}  // namespace

EndOps::EndOps(draft::Draft& draft, const ModelShape& shape, const StepOptions& options,
               const ChainArrays& arrays)
    : shape_(shape), options_(options), arrays_(arrays) {
  program::Program& program = draft.program;
  own_.fill(-1);
  const int64_t rows = options.micro_batch_size * options.tokens;
  for (int number = 0; number < kNumEndValues; ++number) {
    const auto value = static_cast<EndValue>(number);
    const int64_t elements = end_value_elements(value, shape, rows);
    if (elements == 0) continue;
    values_[static_cast<size_t>(number)] = draft::declare(
        program, {end_value_name(value), 1, end_value_dtype(value, options.dtype), elements});
    if (!shape.splits_rows || !is_exchanged_by_rows(value)) continue;
    own_[static_cast<size_t>(number)] =
        draft::declare(program, {std::string(end_value_name(value)) + ".own", 1,
                                 end_value_dtype(value, options.dtype), elements / shape.x});
    draft.own_rows.push_back(own_[static_cast<size_t>(number)]);
  }
  if (shape.splits_rows && options.purpose == draft::Purpose::kTrain) {
    embedding_gradient_ = draft::declare(
        program, {"embedding_gradient", 1, options.dtype, rows * shape.options.width / shape.y});
    draft.own_rows.push_back(arrays.gradient);
  }
  agreed_ = draft::find_array(program, "agreed");
  step_ = draft::find_array(program, "step");
}

std::vector<Op> EndOps::embedding() const {
  std::vector<Op> ops;
  for (const EndStep step : {EndStep::kLookUp, EndStep::kEmbed}) add_step(step, 0, ops);
  return ops;
}

std::vector<Op> EndOps::embedding_gradient(Op backward) const {
  Operand& gradient = *std::ranges::find(backward.reads, draft::kOutputGradient, &Operand::slot);
  const Operand all{embedding_gradient_, {}, Access::kWrite, draft::kEndValues};
  std::vector<Op> ops = {transfer(program::OpKind::kAllGather, gradient, all)};
  gradient = program::as(all, Access::kRead, draft::kOutputGradient);
  ops.push_back(std::move(backward));
  return ops;
}

Op EndOps::transfer(program::OpKind kind, const Operand& from, const Operand& to) const {
  Op op;
  op.kind = kind;
  const int64_t elements =
      options_.micro_batch_size * options_.tokens * shape_.options.width / shape_.y;
  if (kind != program::OpKind::kAllReduce) op.partition = {elements, elements / shape_.x};
  op.reads = {program::as(from, Access::kRead, from.slot)};
  op.writes = {program::as(to, Access::kWrite, to.slot)};
  return op;
}

void EndOps::add_step(EndStep step, int64_t block, std::vector<Op>& ops) const {
  ops.push_back(make_op(step, block));
  if (!shape_.splits_rows) return;
  const std::vector<Operand> written = ops.back().writes;
  for (const Operand& from : written) {
    if (!draft::is_exchanged_by_rows(from.slot) || from.access != Access::kWrite) continue;
    const auto value = static_cast<size_t>(from.slot - draft::kEndValues);
    const bool gathers = works_by_rows(step);
    Operand to = from;
    to.array = (gathers ? values_ : own_)[value];
    ops.push_back(transfer(gathers ? program::OpKind::kAllGather : program::OpKind::kReduceScatter,
                           from, to));
  }
}

int EndOps::array_of(EndValue value, EndStep step) const {
  const int own = own_[static_cast<size_t>(value)];
  return own >= 0 && works_by_rows(step) ? own : values_[static_cast<size_t>(value)];
}

std::vector<Op> EndOps::head() const {
  const bool trains = options_.purpose == draft::Purpose::kTrain;
  const int64_t block = static_cast<int64_t>(shape_.blocks.size()) - 1;
  std::vector<Op> ops;
  for (const EndStep step : head_steps(shape_, trains)) add_step(step, block, ops);
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
  const bool splits = shape_.splits_rows;
  if (step == EndStep::kMoments || step == (splits ? EndStep::kNorm : EndStep::kLogits) ||
      step == EndStep::kSlopes || step == (splits ? EndStep::kNormGradient : EndStep::kGradient))
    add(arrays_.activation, last, Access::kRead, draft::kInput);
  if (step == EndStep::kLoss) {
    if (trains) add(step_, 0, Access::kRead, draft::kStepValues);
    add(agreed_, 0, Access::kAdd, draft::kAgreed);
  }
  if (step == (splits ? EndStep::kNormGradient : EndStep::kGradient))
    add(arrays_.gradient, last, Access::kWrite, draft::kInputGradient);
}

void EndOps::add_values(Op& op, EndStep step) const {
  const bool trains = options_.purpose == draft::Purpose::kTrain;
  const int64_t rows = options_.micro_batch_size * options_.tokens;
  const auto add = [&](const std::vector<EndValue>& values, Access access) {
    for (const EndValue value : values)
      if (end_value_elements(value, shape_, rows) > 0)
        draft::add_operand(op, array_of(value, step), {}, access, draft::end_slot(value));
  };
  const EndUses& uses = end_uses(step, shape_.splits_rows);
  add(uses.reads, Access::kRead);
  if (trains || step != EndStep::kLoss) add(uses.writes, Access::kWrite);
  if (trains) add(uses.updates, Access::kUpdate);
}

}  // namespace strait::strategy
