#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "strait/base/errors.h"
#include "strait/sequence/worked_pairs.h"
#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;

Documents::Documents(draft::Draft& draft, const ModelShape& shape,
                     const draft::StepOptions& options, const DocumentAxis& axis)
    : axis_(axis),
      layout_(sequence::rank_layout(*options.plan, axis.member)),
      moved_(draft, draft::extent_of(shape, options), options.dtype, layout_, axis),
      ahead_(options.plan->fills ? 2 : 1),
      attention_width_(draft::extent_of(shape, options).attention_width()),
      rounds_(draft, draft::extent_of(shape, options), options.dtype) {
  const BlockExtent extent = draft::extent_of(shape, options);
  ensure(layout_.linear_rows <= options.tokens, "a plan that a rank has no room for");
  for (size_t group = 0; group < layout_.groups.size(); ++group)
    arrays_.push_back(declare_group(draft, options.dtype, group, extent));
}

Documents::GroupArrays Documents::declare_group(draft::Draft& draft, Dtype dtype, size_t number,
                                                const BlockExtent& extent) {
  const sequence::RankGroup& group = layout_.groups[number];
  const auto declare = [&](const char* name, BlockValue value, int64_t round) {
    return draft::declare(
        draft.program,
        {fmt::format("{}.{}.{}", name, number, round), 1, value_dtype(value, dtype),
         std::max<int64_t>(1, group.rows_of(group.holder(round))) * 2 * extent.kv_width()});
  };
  GroupArrays arrays;
  for (int64_t round = 0; round < group.size; ++round)
    arrays.keys.push_back(declare("keys", BlockValue::kKeys, round));
  for (int64_t round = 1; round < group.size; ++round)
    arrays.parts.push_back(declare("key_gradient_part", BlockValue::kKeyGradient, round));
  for (int64_t round = 2; round <= group.size; ++round)
    arrays.sums.push_back(declare("key_gradient_sum", BlockValue::kKeyGradient, round));
  return arrays;
}

void Documents::apply(draft::Visit& visit) const {
  rounds_.rewrite(
      visit, axis_.axis,
      [this](const Op& attention, std::vector<Op>& ops) { forward(attention, ops); },
      [this](const Op& attention, const Operand& gradient, std::vector<Op>& ops) {
        backward(attention, gradient, ops);
      });
}

/// Keys of all rings on their way before any rank computes.
void Documents::start(const Op& attention, std::vector<Op>& ops) const {
  for (size_t group = 0; group < layout_.groups.size(); ++group) {
    if (layout_.groups[group].size == 1) continue;
    pack(attention, group, ops);
    for (int64_t number = 0; number < ahead_; ++number) pass_keys(group, number, ops);
  }
}

void Documents::pack(const Op& attention, size_t group, std::vector<Op>& ops) const {
  Op pack = pack_keys(attention, {keys(group, 0), {}});
  pack.kernel = &draft::kPackGroup;
  mark(pack, group, 0);
  ops.push_back(std::move(pack));
}

/// What a round needs: the rank's own keys, or that those of rounds to come are on their way.
void Documents::prepare(const Op& attention, const sequence::EngineStep& step,
                        std::vector<Op>& ops) const {
  const auto group = static_cast<size_t>(step.group);
  if (layout_.groups[group].size == 1) {
    pack(attention, group, ops);
  } else if (step.round > 0) {
    pass_keys(group, step.round + ahead_ - 1, ops);
  }
}

void Documents::forward(const Op& attention, std::vector<Op>& ops) const {
  const Operand* const saved = program::operand_in(attention.writes, draft::kSaved);
  const auto value = [&](BlockValue one) {
    const int slot = saved ? static_cast<int>(draft::kSaved) : draft::block_slot(one);
    return *draft::find_operand({&attention, 1}, slot);
  };
  RowMoves::Arrivals arrivals =
      moved_.start(attention, RemapStep::kPackQkv, {value(BlockValue::kQkv)}, true, ops);
  for (size_t group = 0; group < layout_.groups.size(); ++group)
    if (layout_.groups[group].size > 1) moved_.place(attention, arrivals, end_row(group), ops);
  start(attention, ops);
  for (const sequence::EngineStep& step : layout_.order) {
    moved_.place(attention, arrivals, end_row(static_cast<size_t>(step.group)), ops);
    prepare(attention, step, ops);
    ops.push_back(round(attention, step));
    ops.push_back(draft::free_op({keys(static_cast<size_t>(step.group), step.round), {}}));
  }
  moved_.exchange(attention, RemapStep::kPackAttention, {value(BlockValue::kAttention)}, false,
                  ops);
  rounds_.free_carried(attention, ops);
}

/// A sum goes on as soon as this rank's part is in it, and comes home while others are under way.
void Documents::backward(const Op& attention, const Operand& gradient, std::vector<Op>& ops) const {
  const auto value = [&](int slot) { return *draft::find_operand({&attention, 1}, slot); };
  RowMoves::Arrivals arrivals =
      moved_.start(attention, RemapStep::kPackAttentionGradient,
                   {value(draft::block_slot(BlockValue::kAttentionGradient))}, true, ops);
  start(attention, ops);
  moved_.place(attention, arrivals, -1, ops);  // the first round needs something of every row
  for (const sequence::EngineStep& step : layout_.order) {
    const auto group = static_cast<size_t>(step.group);
    const int64_t number = step.round;
    prepare(attention, step, ops);
    ops.push_back(round(attention, step));
    const Operand part = number == 0 ? gradient : Operand{this->part(group, number), {}};
    const bool begun = number == 0 && !(step == layout_.order.front());
    ops.back().writes.push_back(program::as(part, begun ? Access::kUpdate : Access::kWrite,
                                            draft::block_slot(BlockValue::kKeyGradient)));
    ops.push_back(draft::free_op({keys(group, number), {}}));
    if (number > 1) {
      ops.push_back(add(attention, part, group, number));
      ops.push_back(draft::free_op({sum(group, number), {}}));
      ops.push_back(draft::free_op({this->part(group, number - 1), {}}));
    }
    if (number > 0) pass(group, {this->part(group, number), {}}, {sum(group, number + 1), {}}, ops);
  }
  for (size_t group = 0; group < layout_.groups.size(); ++group) {
    const int64_t size = layout_.groups[group].size;
    if (size == 1) continue;
    ops.push_back(add(attention, gradient, group, size));
    ops.push_back(draft::free_op({sum(group, size), {}}));
    ops.push_back(draft::free_op({part(group, size - 1), {}}));
  }
  moved_.exchange(
      attention, RemapStep::kPackQkvGradient,
      {value(draft::kDeferred),
       program::as(gradient, Access::kRead, draft::block_slot(BlockValue::kKeyGradient))},
      false, ops);
  rounds_.free_carried(attention, ops);
}

void Documents::mark(Op& op, size_t group, int64_t number) const {
  op.attributes[draft::kLength] = std::max<int64_t>(1, layout_.attention_rows);
  op.attributes.push_back(number);
  op.attributes.push_back(static_cast<int64_t>(group));
}

Op Documents::round(const Op& attention, const sequence::EngineStep& step) const {
  const auto group = static_cast<size_t>(step.group);
  const bool forward = draft::phase_of(attention) == Phase::kForward;
  Op op = attention;
  op.kernel = forward ? &draft::kAttendGroup : &draft::kAttendGroupInput;
  op.group = axis_.axis.group;
  // Two products forward, as many again for the gradients of each factor; backward what is needed
  // of the forward again is not counted, but what tiles hold beside causal pairs is.
  const double products = forward ? 4.0 : 8.0;
  const double flops =
      products * static_cast<double>(attention_width_) *
      static_cast<double>(sequence::worked_pairs(layout_.groups[group], step.round));
  draft::set_flops(op, flops, flops);
  mark(op, group, step.round);
  rounds_.attend(op, attention, {keys(group, step.round), {}}, step == layout_.order.front());
  return op;
}

/// To the next member, from the one before. Hops of neighbours have different lanes, so that no
/// rank waits to send behind what it receives: those of even members, of odd ones, and where the
/// ring is odd the last one's.
void Documents::pass(size_t group, const Operand& from, const Operand& to,
                     std::vector<Op>& ops) const {
  const sequence::RankGroup& ring = layout_.groups[group];
  const auto lane = [&](int64_t member) {
    const bool odd_end = member + 1 == ring.size && ring.size % 2 == 1;
    return axis_.lanes[odd_end ? 2 : static_cast<size_t>(member % 2)];
  };
  Op send;
  send.kind = OpKind::kSend;
  send.group = axis_.axis.group;
  send.stream = lane(ring.member);
  send.peer = {ring.next};
  send.reads = {program::as(from, Access::kRead)};
  Op receive;
  receive.kind = OpKind::kReceive;
  receive.group = axis_.axis.group;
  receive.stream = lane((ring.member + ring.size - 1) % ring.size);
  receive.peer = {ring.before};
  receive.writes = {program::as(to, Access::kWrite)};
  ops.push_back(std::move(send));
  ops.push_back(std::move(receive));
}

/// Those of round `number` to where they are needed in the next one, if there is one.
void Documents::pass_keys(size_t group, int64_t number, std::vector<Op>& ops) const {
  if (number + 1 >= layout_.groups[group].size) return;
  pass(group, {keys(group, number), {}}, {keys(group, number + 1), {}}, ops);
}

Op Documents::add(const Op& attention, const Operand& to, size_t group, int64_t number) const {
  Op op = add_sum(attention, axis_.axis, {sum(group, number), {}}, to);
  op.kernel = &draft::kAddGroupGradient;
  mark(op, group, number);
  return op;
}

}  // namespace strait::strategy
