#include <algorithm>
#include <utility>

#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using enum BlockValue;
using program::Access;
using program::Op;
using program::Operand;

namespace {

/// Of a member of a ring: some heads, and the tokens of all ranks that exchange these.
BlockExtent member_extent(BlockExtent extent, int64_t ranks) {
  extent.rows *= ranks;
  extent.heads /= ranks;
  extent.kv_heads /= ranks;
  extent.sequence /= ranks;
  extent.engine = SequenceEngine::kRing;
  return extent;
}

/// What rounds work on in place of the results for a rank's own tokens: those of its heads.
Op of_heads(Op attention, const Operand& head_attention) {
  std::erase_if(attention.writes, [](const Operand& operand) {
    return operand.slot == draft::block_slot(kAttention);
  });
  attention.writes.push_back(head_attention);
  return attention;
}

}  // namespace

HeadsRing::HeadsRing(draft::Draft& draft, const ModelShape& shape,
                     const draft::StepOptions& options, const HeadsRingAxes& axes)
    : ranks_(axes.heads),
      heads_(draft, shape, options, axes.heads),
      ring_(draft, member_extent(draft::extent_of(shape, options), axes.heads.size), options,
            axes.ring, true) {
  const BlockExtent member = member_extent(draft::extent_of(shape, options), axes.heads.size);
  key_gradient_ = {
      declare_values(draft, member, options.dtype, kKeyGradient, value_name(kKeyGradient)), {}};
}

void HeadsRing::apply(draft::Visit& visit) const {
  for (const Op& op : std::exchange(visit.ops, {})) {
    if (!attends(op))
      visit.ops.push_back(beside_attention(op, ranks_));
    else if (draft::phase_of(op) == Phase::kForward)
      forward(op, visit.ops);
    else
      backward(op, visit.ops);
  }
}

void HeadsRing::forward(const Op& attention, std::vector<Op>& ops) const {
  heads_.fetch(attention, ops);
  Op order = heads_.step(attention, HeadStep::kOrder);
  order.reads.push_back(heads_.operand(kHeadReceive, Access::kRead));
  order.writes.push_back(qkv_in_place(attention));
  ops.push_back(std::move(order));
  heads_.free({kHeadSend, kHeadReceive}, ops);
  ring_.forward(of_heads(attention, heads_.operand(kHeadAttention, Access::kWrite)), ops);
  Op split = heads_.step(attention, HeadStep::kSplit);
  split.reads.push_back(heads_.operand(kHeadAttention, Access::kRead));
  split.writes.push_back(heads_.operand(kHeadOutSend, Access::kWrite));
  ops.push_back(std::move(split));
  heads_.free({kHeadAttention}, ops);
  heads_.give_back(attention, ops);
}

void HeadsRing::backward(const Op& attention, std::vector<Op>& ops) const {
  const int gradient = draft::block_slot(kAttentionGradient);
  heads_.fetch(attention, ops);
  Op order = heads_.step(attention, HeadStep::kOrderGradient);
  for (const BlockValue one : {kHeadOutReceive, kHeadDeltaReceive})
    order.reads.push_back(heads_.operand(one, Access::kRead));
  order.writes.push_back(ring_.rounds().delta(Access::kWrite));
  order.writes.push_back(
      program::as(*program::operand_in(attention.reads, gradient), Access::kUpdate, gradient));
  ops.push_back(std::move(order));
  heads_.free({kHeadOutSend, kHeadOutReceive, kHeadDeltaSend, kHeadDeltaReceive}, ops);
  ring_.backward(attention, key_gradient_, ops);
  Op update = attention;  // of what the rounds have begun
  for (Operand& operand : update.writes) operand.access = Access::kUpdate;
  Op split = heads_.step(attention, HeadStep::kSplitGradient);
  split.reads.push_back(program::as(key_gradient_, Access::kRead, draft::block_slot(kKeyGradient)));
  split.writes = update.writes;
  split.writes.push_back(heads_.operand(kHeadSend, Access::kWrite));
  ops.push_back(std::move(split));
  ops.push_back(draft::free_op(key_gradient_));
  heads_.give_back(update, ops);
}

}  // namespace strait::strategy
