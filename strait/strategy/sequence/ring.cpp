#include <utility>
#include <vector>

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

Operand read_keys(const Operand& keys) {
  return program::as(keys, Access::kRead, draft::block_slot(BlockValue::kKeys));
}

}  // namespace

Ring::Ring(draft::Draft& draft, const BlockExtent& extent, const draft::StepOptions& options,
           const SequenceAxis& axis, bool delta_comes)
    : axis_(axis),
      chunk_(extent.rows / options.micro_batch_size / 2),
      parts_(sequence::ring_parts(chunk_)),
      rounds_(draft, extent, options.dtype, delta_comes) {
  BlockExtent part = extent;
  part.rows /= parts_;
  const auto declare = [&](const BlockExtent& of, BlockValue value, const char* name,
                           int64_t count) {
    return declare_values(draft, of, options.dtype, value, name, count);
  };
  keys_ = declare(extent, BlockValue::kKeys, value_name(BlockValue::kKeys), axis.size);
  part_keys_ =
      parts_ == 1 ? keys_ : declare(part, BlockValue::kKeys, "key_part", parts_ * axis.size);
  gradients_ = declare(part, BlockValue::kKeyGradient, "key_gradient_part", parts_ * axis.size);
  sums_ = declare(part, BlockValue::kKeyGradient, "key_gradient_sum", parts_ * axis.size + 1);
}

void Ring::apply(draft::Visit& visit) const {
  rounds_.rewrite(
      visit, axis_, [this](const Op& attention, Ops& ops) { forward(attention, ops); },
      [this](const Op& attention, const Operand& gradient, Ops& ops) {
        backward(attention, gradient, ops);
      });
}

void Ring::forward(const Op& attention, Ops& ops) const {
  const auto keys = [&](int64_t number) { return Operand{keys_, {number}}; };
  ops.push_back(pack_keys(attention, keys(0)));
  mark_round(ops.back(), 0);
  for (int64_t number = 0; number < axis_.size; ++number) {
    if (number + 1 < axis_.size) ops.push_back(shift(keys(number), keys(number + 1)));
    ops.push_back(
        round(attention, number == 0, part_of_flops(number, OwnPairs::kAll, axis_.size, chunk_)));
    ops.back().attributes.push_back(number);
    if (number > 0) ops.back().reads.push_back(read_keys(keys(number)));
    ops.push_back(draft::free_op(keys(number)));
  }
  rounds_.free_carried(attention, ops);
}

void Ring::backward(const Op& attention, const Operand& gradient, Ops& ops) const {
  const auto free = [&](const Operand& operand) { ops.push_back(draft::free_op(operand)); };
  const auto come_home = [&](int64_t part) {
    add(attention, part, axis_.size, gradient, ops);
    free(value(gradients_, part, axis_.size - 1));
  };
  fetch_part(attention, 0, ops);
  ops.push_back(own_round(attention, OwnPairs::kAcross, gradient));
  free(value(part_keys_, 0, 0));
  for (int64_t part = 0; part < parts_; ++part)
    for (int64_t number = 1; number < axis_.size; ++number) {
      part_round(attention, part, number, ops);
      if (part > 0 && number == 1) come_home(part - 1);
    }
  ops.push_back(own_round(attention, OwnPairs::kWithin, gradient));
  come_home(parts_ - 1);
  rounds_.free_carried(attention, ops);
}

void Ring::fetch_part(const Op& attention, int64_t part, Ops& ops) const {
  ops.push_back(pack_keys(attention, value(part_keys_, part, 0)));
  mark_round(ops.back(), 0, {part, parts_});
  ops.push_back(shift(value(part_keys_, part, 0), value(part_keys_, part, 1)));
}

void Ring::part_round(const Op& attention, int64_t part, int64_t number, Ops& ops) const {
  const auto free = [&](const Operand& operand) { ops.push_back(draft::free_op(operand)); };
  const Operand keys = value(part_keys_, part, number), made = value(gradients_, part, number);
  const bool fetches = number + 1 == axis_.size && part + 1 < parts_;
  if (number + 1 < axis_.size) ops.push_back(shift(keys, value(part_keys_, part, number + 1)));
  if (fetches) fetch_part(attention, part + 1, ops);
  const double flops = part_of_flops(number, OwnPairs::kAll, axis_.size, chunk_);
  Op op = round(attention, false, flops / static_cast<double>(parts_));
  mark_round(op, number, {part, parts_});
  op.attributes.push_back(static_cast<int64_t>(OwnPairs::kAll));
  op.reads.push_back(read_keys(keys));
  op.writes.push_back(
      program::as(made, Access::kWrite, draft::block_slot(BlockValue::kKeyGradient)));
  ops.push_back(std::move(op));
  free(keys);
  if (fetches) free(value(part_keys_, part + 1, 0));
  if (number > 1) add(attention, part, number, made, ops);
  if (number > 1) free(value(gradients_, part, number - 1));
  ops.push_back(shift(made, value(sums_, part, number + 1)));
}

Op Ring::own_round(const Op& attention, OwnPairs pairs, const Operand& gradient) const {
  const bool first = pairs == OwnPairs::kAcross;
  Op op = round(attention, first, part_of_flops(0, pairs, axis_.size, chunk_));
  mark_round(op, 0);
  op.attributes.push_back(static_cast<int64_t>(pairs));
  op.writes.push_back(program::as(gradient, first ? Access::kWrite : Access::kUpdate,
                                  draft::block_slot(BlockValue::kKeyGradient)));
  return op;
}

Op Ring::round(const Op& attention, bool first, double flops) const {
  const bool forward = draft::phase_of(attention) == Phase::kForward;
  Op op = attention;
  op.kernel = forward ? &draft::kAttendRound : &draft::kAttendRoundInput;
  op.group = axis_.group;
  draft::scale_flops(op, flops);
  rounds_.attend(op, attention, first);
  return op;
}

Op Ring::shift(const Operand& from, const Operand& to) const {
  return transfer_op(OpKind::kShift, axis_, from, to);
}

void Ring::add(const Op& attention, int64_t part, int64_t number, const Operand& to,
               Ops& ops) const {
  const Operand sum = value(sums_, part, number);
  Op op = add_sum(attention, axis_, sum, to);
  op.kernel = &draft::kAddKeyGradient;
  mark_round(op, number, {part, parts_});
  ops.push_back(std::move(op));
  ops.push_back(draft::free_op(sum));
}

Operand Ring::value(int array, int64_t part, int64_t number) const {
  return {array, {part * axis_.size + number}};
}

}  // namespace strait::strategy
