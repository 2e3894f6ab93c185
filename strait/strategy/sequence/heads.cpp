#include <utility>

#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using enum BlockValue;
using program::Access;
using program::Op;
using program::Operand;

namespace {

/// Adds operands of `op` in these slots, as they are, or read.
void take(const Op& from, std::initializer_list<int> slots, Op& op) {
  for (const auto* operands : {&from.reads, &from.writes})
    for (const int slot : slots)
      if (const Operand* operand = program::operand_in(*operands, slot))
        op.reads.push_back(program::as(*operand, Access::kRead, slot));
}

}  // namespace

Heads::Heads(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options,
             const SequenceAxis& axis)
    : axis_(axis) {
  const BlockExtent extent = draft::extent_of(shape, options);
  arrays_.fill(-1);
  for (const BlockValue value :
       {kHeadSend, kHeadReceive, kHeadOutSend, kHeadOutReceive, kHeadAttention, kDelta, kQuerySum})
    arrays_[value_index(value)] =
        declare_values(draft, extent, options.dtype, value, value_name(value));
  elements_ = {value_elements(kHeadSend, extent), value_elements(kHeadOutSend, extent)};
  workspace_bytes_ =
      extent.rows * (extent.qkv_width() + extent.attention_width()) * dtype_bytes(options.dtype);
}

void Heads::apply(draft::Visit& visit) const {
  for (const Op& op : std::exchange(visit.ops, {})) {
    if (attends(op)) {
      draft::phase_of(op) == Phase::kForward ? forward(op, visit.ops) : backward(op, visit.ops);
      continue;
    }
    visit.ops.push_back(beside_attention(op, axis_));
  }
}

void Heads::forward(const Op& attention, std::vector<Op>& ops) const {
  const Operand* const saved = program::operand_in(attention.writes, draft::kSaved);
  const int qkv = saved ? static_cast<int>(draft::kSaved) : draft::block_slot(kQkv);
  Op send = step(attention, HeadStep::kSend);
  take(attention, {qkv}, send);
  send.writes.push_back(
      program::as(value(kHeadSend), Access::kWrite, draft::block_slot(kHeadSend)));
  ops.push_back(send);
  ops.push_back(exchange(kHeadSend, kHeadReceive));
  Op attend = step(attention, HeadStep::kAttend);
  take(attention, {draft::kSequences}, attend);
  attend.reads.push_back(
      program::as(value(kHeadReceive), Access::kRead, draft::block_slot(kHeadReceive)));
  attend.writes.push_back(program::as(send.reads.back(), Access::kUpdate, qkv));
  if (!saved)
    attend.writes.push_back(
        program::as(value(kHeadAttention), Access::kWrite, draft::block_slot(kHeadAttention)));
  attend.writes.push_back(
      program::as(value(kHeadOutSend), Access::kWrite, draft::block_slot(kHeadOutSend)));
  ops.push_back(std::move(attend));
  free({kHeadSend, kHeadReceive}, ops);
  if (!saved) free({kHeadAttention}, ops);
  ops.push_back(exchange(kHeadOutSend, kHeadOutReceive));
  Op receive = step(attention, HeadStep::kReceive);
  receive.reads.push_back(
      program::as(value(kHeadOutReceive), Access::kRead, draft::block_slot(kHeadOutReceive)));
  receive.writes = attention.writes;
  ops.push_back(std::move(receive));
  free({kHeadOutSend, kHeadOutReceive}, ops);
}

void Heads::backward(const Op& attention, std::vector<Op>& ops) const {
  Op send = step(attention, HeadStep::kSendGradient);
  take(attention, {draft::block_slot(kAttentionGradient)}, send);
  send.writes.push_back(
      program::as(value(kHeadOutSend), Access::kWrite, draft::block_slot(kHeadOutSend)));
  ops.push_back(std::move(send));
  ops.push_back(exchange(kHeadOutSend, kHeadOutReceive));
  Op attend = step(attention, HeadStep::kAttendInput);
  attend.attributes[draft::kWorkspace] = workspace_bytes_;
  take(attention, {draft::kSequences, draft::kSaved}, attend);
  attend.reads.push_back(
      program::as(value(kHeadOutReceive), Access::kRead, draft::block_slot(kHeadOutReceive)));
  for (const BlockValue one : {kHeadSend, kDelta, kQuerySum})
    if (value(one).array >= 0)
      attend.writes.push_back(program::as(value(one), Access::kWrite, draft::block_slot(one)));
  ops.push_back(std::move(attend));
  free({kHeadOutSend, kHeadOutReceive, kDelta, kQuerySum}, ops);
  ops.push_back(exchange(kHeadSend, kHeadReceive));
  Op receive = step(attention, HeadStep::kReceiveGradient);
  receive.reads.push_back(
      program::as(value(kHeadReceive), Access::kRead, draft::block_slot(kHeadReceive)));
  receive.writes = attention.writes;
  ops.push_back(std::move(receive));
  free({kHeadSend, kHeadReceive}, ops);
}

Op Heads::step(const Op& attention, HeadStep step) const {
  Op op = attention;
  op.kernel = &draft::head_kernel(step);
  op.group = axis_.group;
  op.attributes[draft::kWorkspace] = int64_t{0};
  if (step != HeadStep::kAttend && step != HeadStep::kAttendInput) draft::set_flops(op, 0);
  op.reads.clear();
  op.writes.clear();
  take(attention, {draft::kTokens}, op);
  return op;
}

Op Heads::exchange(BlockValue from, BlockValue to) const {
  Op op = transfer_op(program::OpKind::kAllToAll, axis_, value(from), value(to));
  const int64_t elements = elements_[from == kHeadSend ? 0 : 1];
  op.partition = {elements, elements / axis_.size};
  return op;
}

Operand Heads::value(BlockValue value) const { return {arrays_[value_index(value)], {}}; }

void Heads::free(std::initializer_list<BlockValue> values, std::vector<Op>& ops) const {
  for (const BlockValue one : values)
    if (value(one).array >= 0) ops.push_back(draft::free_op(value(one)));
}

}  // namespace strait::strategy
