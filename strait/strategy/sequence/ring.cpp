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
using sequence::OwnPairs;

namespace {

/// Floating-point operations of a round, or a half of round 0, out of those of all: two chunks
/// against two, of which round 0 leaves out what is not causal.
double part_of_flops(int64_t round, OwnPairs pairs, int64_t ranks, int64_t chunk) {
  const bool across = pairs != OwnPairs::kWithin, within = pairs != OwnPairs::kAcross;
  const int64_t own = (across ? chunk : 0) + (within ? chunk + 1 : 0);
  return static_cast<double>(round == 0 ? own : 2 * chunk) /
         static_cast<double>(2 * chunk * ranks + 1);
}

}  // namespace

Ring::Ring(draft::Draft& draft, const BlockExtent& extent, const draft::StepOptions& options,
           const SequenceAxis& axis)
    : axis_(axis),
      rounds_(draft, extent, options.dtype),
      chunk_(extent.rows / options.micro_batch_size / 2) {
  const auto declare = [&](BlockValue value, const char* name, int64_t count) {
    return declare_values(draft, extent, options.dtype, value, name, count);
  };
  keys_ = declare(BlockValue::kKeys, value_name(BlockValue::kKeys), axis.size);
  parts_ = declare(BlockValue::kKeyGradient, "key_gradient_part", axis.size);
  sums_ = declare(BlockValue::kKeyGradient, "key_gradient_sum", axis.size + 1);
}

void Ring::apply(draft::Visit& visit) const {
  rounds_.rewrite(
      visit, axis_, [this](const Op& attention, std::vector<Op>& ops) { forward(attention, ops); },
      [this](const Op& attention, const Operand& gradient, std::vector<Op>& ops) {
        backward(attention, gradient, ops);
      });
}

void Ring::forward(const Op& attention, std::vector<Op>& ops) const {
  ops.push_back(pack_keys(attention, {keys_, {0}}));
  for (int64_t number = 0; number < axis_.size; ++number) {
    if (number + 1 < axis_.size) ops.push_back(shift(keys_, number, keys_, number + 1));
    ops.push_back(round(attention, number, OwnPairs::kAll));
    ops.push_back(draft::free_op({keys_, {number}}));
  }
  rounds_.free_carried(attention, ops);
}

void Ring::backward(const Op& attention, const Operand& gradient, std::vector<Op>& ops) const {
  const auto attend = [&](int64_t number, OwnPairs pairs, Access access) {
    ops.push_back(round(attention, number, pairs));
    ops.back().writes.push_back(
        program::as(part(gradient, number), access, draft::block_slot(BlockValue::kKeyGradient)));
  };
  ops.push_back(pack_keys(attention, {keys_, {0}}));
  for (int64_t number = 0; number < axis_.size; ++number) {
    if (number + 1 < axis_.size) ops.push_back(shift(keys_, number, keys_, number + 1));
    attend(number, number == 0 ? OwnPairs::kAcross : OwnPairs::kAll, Access::kWrite);
    ops.push_back(draft::free_op({keys_, {number}}));
    if (number > 1) ops.push_back(add(attention, part(gradient, number), number));
    if (number > 1) ops.push_back(draft::free_op({sums_, {number}}));
    if (number > 1) ops.push_back(draft::free_op({parts_, {number - 1}}));
    if (number > 0) ops.push_back(shift(parts_, number, sums_, number + 1));
  }
  attend(0, OwnPairs::kWithin, Access::kUpdate);
  ops.push_back(add(attention, gradient, axis_.size));
  ops.push_back(draft::free_op({sums_, {axis_.size}}));
  ops.push_back(draft::free_op({parts_, {axis_.size - 1}}));
  rounds_.free_carried(attention, ops);
}

Operand Ring::part(const Operand& gradient, int64_t number) const {
  return number == 0 ? gradient : Operand{parts_, {number}};
}

Op Ring::round(const Op& attention, int64_t number, OwnPairs pairs) const {
  const bool forward = draft::phase_of(attention) == Phase::kForward;
  Op op = attention;
  op.kernel = forward ? &draft::kAttendRound : &draft::kAttendRoundInput;
  op.group = axis_.group;
  draft::scale_flops(op, part_of_flops(number, pairs, axis_.size, chunk_));
  op.attributes.push_back(number);
  if (!forward) op.attributes.push_back(static_cast<int64_t>(pairs));
  const bool first = number == 0 && pairs != OwnPairs::kWithin;
  rounds_.attend(op, attention, first);
  if (number > 0)
    op.reads.push_back(
        program::as({keys_, {number}}, Access::kRead, draft::block_slot(BlockValue::kKeys)));
  return op;
}

Op Ring::shift(int array, int64_t from, int to_array, int64_t to) const {
  return transfer_op(OpKind::kShift, axis_, {array, {from}}, {to_array, {to}});
}

Op Ring::add(const Op& attention, const Operand& to, int64_t from) const {
  Op op = add_sum(attention, axis_, {sums_, {from}}, to);
  op.kernel = &draft::kAddKeyGradient;
  return op;
}

}  // namespace strait::strategy
