#include <algorithm>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;

namespace {

/// Floating-point operations of a round out of those of all: two chunks against two, of which
/// round 0 leaves out what is not causal.
double part_of_flops(int64_t round, int64_t ranks, int64_t chunk) {
  const double here = static_cast<double>(2 * chunk + (round == 0 ? 1 : 0));
  return here / static_cast<double>(2 * chunk * ranks + 1);
}

}  // namespace

Ring::Ring(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options,
           const SequenceAxis& axis)
    : axis_(axis), chunk_(options.tokens / 2) {
  const BlockExtent extent =
      block_extent(shape, options.micro_batch_size, options.tokens, options.dtype);
  const auto declare = [&](BlockValue value, const char* name, int64_t count) {
    return declare_values(draft, extent, options.dtype, value, name, count);
  };
  const auto carried = [&](BlockValue value) -> Carried {
    return {declare(value, value_name(value), 1), value};
  };
  keys_ = declare(BlockValue::kKeys, value_name(BlockValue::kKeys), axis.size);
  parts_ = declare(BlockValue::kKeyGradient, "key_gradient_part", axis.size);
  sums_ = declare(BlockValue::kKeyGradient, "key_gradient_sum", axis.size + 1);
  log_sum_exp_ = carried(BlockValue::kLogSumExp);
  attention_sum_ = carried(BlockValue::kAttentionSum);
  delta_ = carried(BlockValue::kDelta);
  query_sum_ = carried(BlockValue::kQuerySum);
}

void Ring::apply(draft::Visit& visit) const {
  const std::vector<Op> before = std::exchange(visit.ops, {});
  const Operand* const gradient =
      draft::find_operand(before, draft::block_slot(BlockValue::kKeyGradient));
  for (const Op& op : before) {
    if (!attends(op)) {
      visit.ops.push_back(beside_attention(op, axis_));
    } else if (draft::phase_of(op) == Phase::kForward) {
      forward(op, visit.ops);
    } else {
      ensure(gradient != nullptr, "a ring whose gradients of keys nothing reads");
      backward(op, *gradient, visit.ops);
      visit.frees.push_back(*gradient);
    }
  }
}

void Ring::forward(const Op& attention, std::vector<Op>& ops) const {
  // Where nothing is kept, sums of probabilities have no other place.
  std::vector<Carried> carried = {attention_sum_};
  if (!draft::find_operand({&attention, 1}, draft::kSaved)) carried.push_back(log_sum_exp_);
  ops.push_back(pack_keys(attention, {keys_, {0}}));
  for (int64_t number = 0; number < axis_.size; ++number) {
    if (number + 1 < axis_.size) ops.push_back(shift(keys_, number, keys_, number + 1));
    ops.push_back(round(attention, number, carried));
    ops.push_back(draft::free_op({keys_, {number}}));
  }
  for (const Carried& value : carried)
    if (value.array >= 0) ops.push_back(draft::free_op({value.array, {}}));
}

void Ring::backward(const Op& attention, const Operand& gradient, std::vector<Op>& ops) const {
  const std::vector<Carried> carried = {delta_, query_sum_};
  ops.push_back(pack_keys(attention, {keys_, {0}}));
  for (int64_t number = 0; number < axis_.size; ++number) {
    if (number + 1 < axis_.size) ops.push_back(shift(keys_, number, keys_, number + 1));
    ops.push_back(round(attention, number, carried));
    ops.back().writes.push_back(program::as(part(gradient, number), Access::kWrite,
                                            draft::block_slot(BlockValue::kKeyGradient)));
    ops.push_back(draft::free_op({keys_, {number}}));
    if (number > 1) ops.push_back(add(attention, part(gradient, number), number));
    if (number > 1) ops.push_back(draft::free_op({sums_, {number}}));
    if (number > 1) ops.push_back(draft::free_op({parts_, {number - 1}}));
    if (number > 0) ops.push_back(shift(parts_, number, sums_, number + 1));
  }
  ops.push_back(add(attention, gradient, axis_.size));
  ops.push_back(draft::free_op({sums_, {axis_.size}}));
  ops.push_back(draft::free_op({parts_, {axis_.size - 1}}));
  for (const Carried& value : carried)
    if (value.array >= 0) ops.push_back(draft::free_op({value.array, {}}));
}

Operand Ring::part(const Operand& gradient, int64_t number) const {
  return number == 0 ? gradient : Operand{parts_, {number}};
}

Op Ring::round(const Op& attention, int64_t number, const std::vector<Carried>& carried) const {
  const bool forward = draft::phase_of(attention) == Phase::kForward;
  Op op = attention;
  op.kernel = forward ? &draft::kAttendRound : &draft::kAttendRoundInput;
  op.group = axis_.group;
  auto& flops = std::get<double>(op.attributes[draft::kFlops]);
  flops *= part_of_flops(number, axis_.size, chunk_);
  op.attributes[draft::kWorkspace] = int64_t{0};
  op.attributes.push_back(number);
  op.reads.push_back(
      program::as({keys_, {number}}, Access::kRead, draft::block_slot(BlockValue::kKeys)));
  for (const Carried& value : carried)
    if (value.array >= 0)
      op.writes.push_back(
          program::as({value.array, {}}, Access::kWrite, draft::block_slot(value.value)));
  if (number > 0)
    for (Operand& operand : op.writes) operand.access = Access::kUpdate;
  return op;
}

Op Ring::shift(int array, int64_t from, int to_array, int64_t to) const {
  return transfer_op(OpKind::kShift, axis_, {array, {from}}, {to_array, {to}});
}

Op Ring::add(const Op& attention, const Operand& to, int64_t from) const {
  Op op = attention;
  op.kernel = &draft::kAddKeyGradient;
  op.group = axis_.group;
  op.attributes[draft::kFlops] = 0.0;
  op.attributes[draft::kWorkspace] = int64_t{0};
  std::erase_if(op.reads, [](const Operand& operand) { return operand.slot != draft::kTokens; });
  op.reads.push_back(program::as({sums_, {from}}, Access::kRead,
                                 draft::block_slot(BlockValue::kGatheredKeyGradient)));
  op.writes = {program::as(to, Access::kUpdate, draft::block_slot(BlockValue::kKeyGradient))};
  return op;
}

}  // namespace strait::strategy
