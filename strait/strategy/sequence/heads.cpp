#include <utility>

#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using enum BlockValue;
using program::Access;
using program::Op;
using program::Operand;

void take(const Op& from, std::initializer_list<int> slots, Op& op) {
  for (const auto* operands : {&from.reads, &from.writes})
    for (const int slot : slots)
      if (const Operand* operand = program::operand_in(*operands, slot))
        op.reads.push_back(program::as(*operand, Access::kRead, slot));
}

Operand qkv_in_place(const Op& attention) {
  if (const Operand* saved = program::operand_in(attention.writes, draft::kSaved))
    return program::as(*saved, Access::kUpdate, draft::kSaved);
  const int slot = draft::block_slot(kQkv);
  return program::as(*program::operand_in(attention.reads, slot), Access::kUpdate, slot);
}

Heads::Heads(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options,
             const SequenceAxis& axis)
    : axis_(axis) {
  const BlockExtent extent = draft::extent_of(shape, options);
  arrays_.fill(-1);
  for (const BlockValue value :
       {kHeadSend, kHeadReceive, kHeadOutSend, kHeadOutReceive, kHeadDeltaSend, kHeadDeltaReceive,
        kHeadAttention, kDelta, kQuerySum}) {
    const int array = declare_values(draft, extent, options.dtype, value, value_name(value));
    arrays_[value_index(value)] = array;
    if (array >= 0) elements_[value_index(value)] = draft.program.arrays[array].partition.elements;
  }
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

void Heads::fetch(const Op& attention, std::vector<Op>& ops) const {
  const bool forward = draft::phase_of(attention) == Phase::kForward;
  const BlockValue sent = forward ? kHeadSend : kHeadOutSend;
  Op send = step(attention, forward ? HeadStep::kSend : HeadStep::kSendGradient);
  if (forward)
    take(attention, {draft::kSaved, draft::block_slot(kQkv)}, send);
  else
    take(attention, {draft::kSaved, draft::block_slot(kAttentionGradient)}, send);
  send.writes.push_back(operand(sent, Access::kWrite));
  if (!forward) send.writes.push_back(operand(kHeadDeltaSend, Access::kWrite));
  ops.push_back(std::move(send));
  ops.push_back(exchange(sent, forward ? kHeadReceive : kHeadOutReceive));
  if (!forward) ops.push_back(exchange(kHeadDeltaSend, kHeadDeltaReceive));
}

void Heads::give_back(const Op& attention, std::vector<Op>& ops) const {
  const bool forward = draft::phase_of(attention) == Phase::kForward;
  const BlockValue sent = forward ? kHeadOutSend : kHeadSend;
  const BlockValue received = forward ? kHeadOutReceive : kHeadReceive;
  ops.push_back(exchange(sent, received));
  Op receive = step(attention, forward ? HeadStep::kReceive : HeadStep::kReceiveGradient);
  receive.reads.push_back(operand(received, Access::kRead));
  receive.writes = attention.writes;
  ops.push_back(std::move(receive));
  free({sent, received}, ops);
}

void Heads::forward(const Op& attention, std::vector<Op>& ops) const {
  fetch(attention, ops);
  Op attend = step(attention, HeadStep::kAttend);
  take(attention, {draft::kSequences}, attend);
  attend.reads.push_back(operand(kHeadReceive, Access::kRead));
  attend.writes.push_back(qkv_in_place(attention));
  attend.writes.push_back(operand(kHeadAttention, Access::kWrite));
  attend.writes.push_back(operand(kHeadOutSend, Access::kWrite));
  ops.push_back(std::move(attend));
  free({kHeadSend, kHeadReceive, kHeadAttention}, ops);
  give_back(attention, ops);
}

void Heads::backward(const Op& attention, std::vector<Op>& ops) const {
  fetch(attention, ops);
  Op attend = step(attention, HeadStep::kAttendInput);
  attend.attributes[draft::kWorkspace] = workspace_bytes_;
  take(attention, {draft::kSequences, draft::kSaved}, attend);
  for (const BlockValue one : {kHeadOutReceive, kHeadDeltaReceive})
    attend.reads.push_back(operand(one, Access::kRead));
  for (const BlockValue one : {kHeadSend, kDelta, kQuerySum})
    if (value(one).array >= 0) attend.writes.push_back(operand(one, Access::kWrite));
  ops.push_back(std::move(attend));
  free({kHeadOutSend, kHeadOutReceive, kHeadDeltaSend, kHeadDeltaReceive, kDelta, kQuerySum}, ops);
  give_back(attention, ops);
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
  const int64_t elements = elements_[value_index(from)];
  op.partition = {elements, elements / axis_.size};
  return op;
}

Operand Heads::value(BlockValue value) const { return {arrays_[value_index(value)], {}}; }

Operand Heads::operand(BlockValue one, Access access) const {
  return program::as(value(one), access, draft::block_slot(one));
}

void Heads::free(std::initializer_list<BlockValue> values, std::vector<Op>& ops) const {
  for (const BlockValue one : values)
    if (value(one).array >= 0) ops.push_back(draft::free_op(value(one)));
}

}  // namespace strait::strategy
