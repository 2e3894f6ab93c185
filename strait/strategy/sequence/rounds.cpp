#include <utility>

#include "strait/base/errors.h"
#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using program::Access;
using program::Op;
using program::Operand;

Rounds::Rounds(draft::Draft& draft, const BlockExtent& extent, Dtype dtype, bool delta_comes)
    : delta_comes_(delta_comes) {
  const auto carried = [&](BlockValue value) -> Carried {
    return {declare_values(draft, extent, dtype, value, value_name(value)), value};
  };
  log_sum_exp_ = carried(BlockValue::kLogSumExp);
  attention_sum_ = carried(BlockValue::kAttentionSum);
  delta_ = carried(BlockValue::kDelta);
  query_sum_ = carried(BlockValue::kQuerySum);
}

void Rounds::rewrite(draft::Visit& visit, const SequenceAxis& axis, const Forward& forward,
                     const Backward& backward) const {
  const std::vector<Op> before = std::exchange(visit.ops, {});
  const Operand* const gradient =
      draft::find_operand(before, draft::block_slot(BlockValue::kKeyGradient));
  for (const Op& op : before) {
    if (!attends(op)) {
      visit.ops.push_back(beside_attention(op, axis));
    } else if (draft::phase_of(op) == Phase::kForward) {
      forward(op, visit.ops);
    } else {
      ensure(gradient != nullptr, "rounds whose gradients of keys nothing reads");
      backward(op, *gradient, visit.ops);
      visit.frees.push_back(*gradient);
    }
  }
}

std::vector<Carried> Rounds::carried(const Op& attention) const {
  if (draft::phase_of(attention) != Phase::kForward) return {delta_, query_sum_};
  // Where nothing is kept, sums of probabilities have no other place.
  if (draft::find_operand({&attention, 1}, draft::kSaved)) return {attention_sum_};
  return {attention_sum_, log_sum_exp_};
}

void Rounds::attend(Op& op, const Op& attention, bool first) const {
  const std::vector<Carried> values = carried(attention);
  op.attributes[draft::kWorkspace] = int64_t{0};
  for (const Carried& value : values)
    if (value.array >= 0)
      op.writes.push_back(
          program::as({value.array, {}}, Access::kWrite, draft::block_slot(value.value)));
  for (Operand& operand : op.writes)
    if (!first || (delta_comes_ && operand.slot == draft::block_slot(BlockValue::kDelta)))
      operand.access = Access::kUpdate;
}

Operand Rounds::delta(Access access) const {
  return program::as({delta_.array, {}}, access, draft::block_slot(BlockValue::kDelta));
}

void Rounds::free_carried(const Op& attention, std::vector<Op>& ops) const {
  for (const Carried& value : carried(attention))
    if (value.array >= 0) ops.push_back(draft::free_op({value.array, {}}));
}

Op add_sum(const Op& attention, const SequenceAxis& axis, const Operand& from, const Operand& to) {
  Op op = attention;
  op.group = axis.group;
  draft::set_flops(op, 0);
  op.attributes[draft::kWorkspace] = int64_t{0};
  std::erase_if(op.reads, [](const Operand& operand) { return operand.slot != draft::kTokens; });
  op.reads.push_back(
      program::as(from, Access::kRead, draft::block_slot(BlockValue::kGatheredKeyGradient)));
  op.writes = {program::as(to, Access::kUpdate, draft::block_slot(BlockValue::kKeyGradient))};
  return op;
}

}  // namespace strait::strategy
