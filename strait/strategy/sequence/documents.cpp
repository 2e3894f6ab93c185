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

namespace {

void free_all(const Chunks& values, std::vector<Op>& ops) {
  for (const Operand& value : values) ops.push_back(draft::free_op(value));
}

/// Adds all chunks of a value, which are one to a kernel.
void add_chunks(const Chunks& values, Access access, BlockValue slot,
                std::vector<Operand>& operands) {
  for (const Operand& value : values)
    operands.push_back(program::as(value, access, draft::block_slot(slot)));
}

}  // namespace

Documents::Documents(draft::Draft& draft, const ModelShape& shape,
                     const draft::StepOptions& options, const DocumentAxis& axis)
    : axis_(axis),
      layout_(sequence::rank_layout(*options.plan, axis.member)),
      moved_(draft, draft::extent_of(shape, options), options.dtype, layout_, axis),
      moves_qkv_(layout_.remapping == sequence::Remapping::kQkv),
      hops_(draft, layout_, options.plan->grid, axis, draft::extent_of(shape, options),
            options.dtype),
      heads_(draft, layout_, shape, options, axis),
      ahead_(options.plan->fills ? 2 : 1),
      extent_(draft::extent_of(shape, options)),
      rounds_(draft, draft::extent_of(shape, options), options.dtype) {
  ensure(layout_.rows <= options.tokens, "a plan that a rank has no room for");
  for (size_t group = 0; group < layout_.groups.size(); ++group)
    values_.push_back(declare_group(draft, options.dtype, group));
}

Documents::GroupValues Documents::declare_group(draft::Draft& draft, Dtype dtype,
                                                size_t number) const {
  const sequence::RankGroup& group = layout_.groups[number];
  const auto declare = [&](const char* name, BlockValue value, int64_t round) {
    return hops_.declare(draft, fmt::format("{}.{}.{}", name, number, round), number,
                         group.holder(round), value_dtype(value, dtype));
  };
  GroupValues values;
  for (int64_t round = 0; round < group.size; ++round)
    values.keys.push_back(declare("keys", BlockValue::kKeys, round));
  for (int64_t round = 1; round < group.size; ++round)
    values.parts.push_back(declare("key_gradient_part", BlockValue::kKeyGradient, round));
  for (int64_t round = 2; round <= group.size; ++round)
    values.sums.push_back(declare("key_gradient_sum", BlockValue::kKeyGradient, round));
  return values;
}

void Documents::apply(draft::Visit& visit) const {
  rounds_.rewrite(
      visit, axis_.axis,
      [this](const Op& attention, std::vector<Op>& ops) { forward(attention, ops); },
      [this](const Op& attention, const Operand& gradient, std::vector<Op>& ops) {
        backward(attention, gradient, ops);
      });
  if (layout_.remapping == sequence::Remapping::kResidual) StreamMoves(moved_).apply(visit);
}

/// Rows of queries, keys and values, or of results, or of their gradients; none where others move.
RowMoves::Arrivals Documents::start_rows(const Op& attention, RemapStep pack,
                                         const std::vector<Operand>& values, bool to_attention,
                                         std::vector<Op>& ops) const {
  if (!moves_qkv_) return {};
  return moved_.start(attention, pack, values, to_attention, ops);
}

std::vector<size_t> Documents::head_groups() const {
  std::vector<size_t> groups;
  for (size_t group = 0; group < layout_.groups.size(); ++group)
    if (heads_.exchanges(group)) groups.push_back(group);
  return groups;
}

/// Keys of all rings on their way before any rank computes; in a forward, of those heads that a
/// rank has got from its neighbours.
void Documents::start(const Op& attention, std::vector<Op>& ops) const {
  const bool forward = draft::phase_of(attention) == Phase::kForward;
  for (size_t group = 0; group < layout_.groups.size(); ++group) {
    if (layout_.groups[group].size == 1) continue;
    if (forward && heads_.exchanges(group))
      heads_.place(attention, RemapStep::kPlaceQkv, group, {}, ops);
    pack(attention, group, ops);
    for (int64_t number = 0; number < ahead_; ++number) pass_keys(group, number, ops);
  }
}

void Documents::pack(const Op& attention, size_t group, std::vector<Op>& ops) const {
  Op pack = pack_keys(attention, {});
  pack.kernel = &draft::kPackGroup;
  if (heads_.exchanges(group)) heads_.take_qkv(pack, attention, group);
  pack.writes.clear();
  add_chunks(keys(group, 0), Access::kWrite, BlockValue::kKeys, pack.writes);
  mark(pack, group, 0);
  ops.push_back(std::move(pack));
}

/// What a round needs: that the keys of rounds to come are on their way, of all parts before the
/// first computes.
void Documents::prepare(const sequence::EngineStep& step, std::vector<Op>& ops) const {
  const auto group = static_cast<size_t>(step.group);
  if (step.round > 0 && layout_.groups[group].part == 0)
    for (int64_t part = 0; part < layout_.groups[group].parts; ++part)
      pass_keys(group + static_cast<size_t>(part), step.round + ahead_ - 1, ops);
}

void Documents::forward(const Op& attention, std::vector<Op>& ops) const {
  const Operand* const saved = program::operand_in(attention.writes, draft::kSaved);
  const auto value = [&](BlockValue one) {
    const int slot = saved ? static_cast<int>(draft::kSaved) : draft::block_slot(one);
    return *draft::find_operand({&attention, 1}, slot);
  };
  RowMoves::Arrivals arrivals =
      start_rows(attention, RemapStep::kPackQkv, {value(BlockValue::kQkv)}, true, ops);
  for (size_t group = 0; group < layout_.groups.size(); ++group)
    if (layout_.groups[group].size > 1) moved_.place(attention, arrivals, end_row(group), ops);
  for (const size_t group : head_groups())
    heads_.send(attention, RemapStep::kPackQkv, group, {value(BlockValue::kQkv)}, ops);
  start(attention, ops);
  for (const sequence::EngineStep& step : layout_.order) {
    const auto group = static_cast<size_t>(step.group);
    moved_.place(attention, arrivals, end_row(group), ops);
    prepare(step, ops);
    ops.push_back(round(attention, step));
    free_keys(group, step.round, ops);
    if (!heads_.exchanges(group) || step.round + 1 < layout_.groups[group].size) continue;
    heads_.send(attention, RemapStep::kPackAttention, group, {}, ops);
    heads_.free(attention, group, ops);
  }
  for (const size_t group : head_groups())
    heads_.place(attention, RemapStep::kPlaceAttention, group, {value(BlockValue::kAttention)},
                 ops);
  RowMoves::Arrivals results =
      start_rows(attention, RemapStep::kPackAttention, {value(BlockValue::kAttention)}, false, ops);
  moved_.place(attention, results, -1, ops);
  rounds_.free_carried(attention, ops);
}

/// A sum goes on as soon as this rank's part is in it, and comes home while others are under way.
void Documents::backward(const Op& attention, const Operand& gradient, std::vector<Op>& ops) const {
  const auto value = [&](int slot) { return *draft::find_operand({&attention, 1}, slot); };
  RowMoves::Arrivals arrivals =
      start_rows(attention, RemapStep::kPackAttentionGradient,
                 {value(draft::block_slot(BlockValue::kAttentionGradient))}, true, ops);
  start(attention, ops);
  moved_.place(attention, arrivals, -1, ops);  // the first round needs something of every row
  for (const size_t group : head_groups())
    heads_.send(attention, RemapStep::kPackAttentionGradient, group,
                {value(draft::block_slot(BlockValue::kAttentionGradient))}, ops);
  const auto own_gradient = [&](size_t group) {
    return heads_.exchanges(group) ? heads_.key_gradient(attention, group) : gradient;
  };
  for (const sequence::EngineStep& step : layout_.backward_order) {
    const auto group = static_cast<size_t>(step.group);
    const int64_t number = step.round;
    const bool within = step.pairs == sequence::OwnPairs::kWithin;
    prepare(step, ops);
    if (heads_.exchanges(group) && step.begins())
      heads_.place(attention, RemapStep::kPlaceAttentionGradient, group, {}, ops);
    ops.push_back(round(attention, step));
    const Chunks part = number == 0 ? Chunks{own_gradient(group)} : this->part(group, number);
    const bool begun = within || (number == 0 && !heads_.exchanges(group) &&
                                  !(step == layout_.first_of_rows(layout_.backward_order)));
    add_chunks(part, begun ? Access::kUpdate : Access::kWrite, BlockValue::kKeyGradient,
               ops.back().writes);
    if (!within) free_keys(group, number, ops);
    if (number > 1) {
      ops.push_back(add(attention, part, group, number));
      free_all(sum(group, number), ops);
      free_all(this->part(group, number - 1), ops);
    }
    if (number > 0)
      hops_.pass(group, Hops::Kind::kGradients, number, part, sum(group, number + 1), ops);
  }
  for (size_t group = 0; group < layout_.groups.size(); ++group) {
    const int64_t size = layout_.groups[group].size;
    if (size == 1) continue;
    ops.push_back(add(attention, {own_gradient(group)}, group, size));
    free_all(sum(group, size), ops);
    free_all(part(group, size - 1), ops);
    if (!heads_.exchanges(group)) continue;
    heads_.send(attention, RemapStep::kPackQkvGradient, group, {}, ops);
    heads_.free(attention, group, ops);
  }
  const std::vector<Operand> own = {
      qkv_gradient_of(attention),
      program::as(gradient, Access::kRead, draft::block_slot(BlockValue::kKeyGradient))};
  for (const size_t group : head_groups())
    heads_.place(attention, RemapStep::kPlaceQkvGradient, group, own, ops);
  RowMoves::Arrivals gradients =
      start_rows(attention, RemapStep::kPackQkvGradient, own, false, ops);
  moved_.place(attention, gradients, -1, ops);
  rounds_.free_carried(attention, ops);
}

/// Those of a rank's own have been packed where others need them.
void Documents::free_keys(size_t group, int64_t number, std::vector<Op>& ops) const {
  if (layout_.groups[group].size > 1) free_all(keys(group, number), ops);
}

void Documents::mark(Op& op, size_t group, int64_t number) const {
  op.attributes[draft::kLength] = layout_.attended_rows();
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
  const int64_t columns = layout_.groups[group].key_heads(extent_.kv_heads).size() *
                          (extent_.attention_width() / extent_.kv_heads);
  const double flops = products * static_cast<double>(columns) *
                       static_cast<double>(sequence::worked_pairs(layout_.groups[group], step));
  draft::set_flops(op, flops, flops);
  mark(op, group, step.round);
  if (!forward) op.attributes.push_back(static_cast<int64_t>(step.pairs));
  if (heads_.exchanges(group)) {
    heads_.attend(op, attention, group, step.begins());
  } else {
    const auto& order = forward ? layout_.order : layout_.backward_order;
    rounds_.attend(op, attention, step == layout_.first_of_rows(order));
  }
  if (step.round > 0)
    add_chunks(keys(group, step.round), Access::kRead, BlockValue::kKeys, op.reads);
  return op;
}

/// Those of round `number` to where they are needed in the next one, if there is one.
void Documents::pass_keys(size_t group, int64_t number, std::vector<Op>& ops) const {
  if (number + 1 >= layout_.groups[group].size) return;
  hops_.pass(group, Hops::Kind::kKeys, number, keys(group, number), keys(group, number + 1), ops);
}

Op Documents::add(const Op& attention, const Chunks& to, size_t group, int64_t number) const {
  Op op = add_sum(attention, axis_.axis, {}, {});
  op.kernel = &draft::kAddGroupGradient;
  op.reads.pop_back();
  op.writes.clear();
  add_chunks(sum(group, number), Access::kRead, BlockValue::kGatheredKeyGradient, op.reads);
  add_chunks(to, Access::kUpdate, BlockValue::kKeyGradient, op.writes);
  mark(op, group, number);
  return op;
}

}  // namespace strait::strategy
