// Moves of the residual stream around a block's attention. The stream itself moves rather than what
// is normed on the way there and the output's product on the way back. Those are as many numbers,
// but the backward needs again what QKV has read, which is made from rows that have come already,
// and the product is a wide sum, which is rounded once, behind the residual's addition.
#include <algorithm>
#include <iterator>

#include "strait/base/errors.h"
#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using program::Op;
using program::Operand;

namespace {

/// Whether an op is of this phase and of the segments up to attention_add.
bool is_first(const Op& op, Phase phase) {
  return draft::works_on_segments(op) && draft::phase_of(op) == phase &&
         draft::range_of(op).begin < static_cast<int>(Segment::kMlpMoments);
}
bool is_for_other_weights(const Op& op) {
  return draft::works_on_segments(op) && draft::phase_of(op) == Phase::kBackwardWeight &&
         !is_first(op, Phase::kBackwardWeight);
}

/// Where those of a phase begin and end.
struct FirstOps {
  size_t begin = 0, end = 0;
  FirstOps(const std::vector<Op>& ops, Phase phase) {
    const auto is_it = [phase](const Op& op) { return is_first(op, phase); };
    begin = static_cast<size_t>(std::ranges::find_if(ops, is_it) - ops.begin());
    const auto last = std::find_if(ops.rbegin(), ops.rend(), is_it);
    end = static_cast<size_t>(ops.rend() - last);
  }
};

const Operand& operand_of(const Op& op, int slot) {
  const Operand* found = draft::find_operand({&op, 1}, slot);
  ensure(found != nullptr, "a segment without the residual stream");
  return *found;
}

}  // namespace

void StreamMoves::apply(draft::Visit& visit) const {
  const auto has = [&](Phase phase) {
    return std::ranges::any_of(visit.ops, [&](const Op& op) { return is_first(op, phase); });
  };
  const bool attends_again = has(Phase::kBackwardInput);
  // What a forward has received of its input is still there where it is done again.
  if (has(Phase::kForward)) forward(std::exchange(visit.ops, {}), !attends_again, visit.ops);
  if (attends_again) backward(std::exchange(visit.ops, {}), visit.ops);
}

void StreamMoves::forward(const Ops& before, bool moves_input, Ops& ops) const {
  const FirstOps first(before, Phase::kForward);
  const auto at = [&](size_t index) { return before.begin() + static_cast<int64_t>(index); };
  const auto exchange = [&](const Op& op, RemapStep pack, const Operand& value, bool to_attention) {
    RowMoves::Arrivals arrivals = rows_.start(op, pack, {value}, to_attention, ops);
    rows_.place(op, arrivals, -1, ops);
  };
  ops.insert(ops.end(), before.begin(), at(first.begin));
  const Op &begin = before[first.begin], &end = before[first.end - 1];
  if (moves_input) exchange(begin, RemapStep::kPackInput, operand_of(begin, draft::kInput), true);
  ops.insert(ops.end(), at(first.begin), at(first.end));
  const bool keeps = draft::find_operand({&end, 1}, draft::kSaved) != nullptr;
  const int middle =
      keeps ? static_cast<int>(draft::kSaved) : draft::block_slot(BlockValue::kMiddle);
  exchange(end, RemapStep::kPackMiddle, operand_of(end, middle), false);
  ops.insert(ops.end(), at(first.end), before.end());
}

void StreamMoves::backward(const Ops& before, Ops& ops) const {
  const FirstOps first(before, Phase::kBackwardInput);
  const Op &begin = before[first.begin], &end = before[first.end - 1];
  const auto at = [&](size_t index) { return before.begin() + static_cast<int64_t>(index); };
  ops.insert(ops.end(), before.begin(), at(first.begin));
  RowMoves::Arrivals gradients = rows_.start(begin, RemapStep::kPackMiddleGradient,
                                             {operand_of(begin, draft::kInputGradient)}, true, ops);
  std::copy_if(at(first.begin), before.end(), std::back_inserter(ops), is_for_other_weights);
  rows_.place(begin, gradients, -1, ops);
  const auto add_rest = [&](size_t from, size_t to) {
    std::copy_if(at(from), at(to), std::back_inserter(ops),
                 [](const Op& op) { return !is_for_other_weights(op); });
  };
  add_rest(first.begin, first.end);
  gradients = rows_.start(end, RemapStep::kPackInputGradient,
                          {operand_of(end, draft::kInputGradient)}, false, ops);
  add_rest(first.end, before.size());
  rows_.place(end, gradients, -1, ops);
}

}  // namespace strait::strategy
