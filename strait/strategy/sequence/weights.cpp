#include "strait/strategy/sequence/weights.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "strait/draft/segment_ops.h"

namespace strait::strategy {

using program::Op;
using program::Operand;
using Ops = std::vector<Op>;

namespace {

/// First segments of parts, in the order of the backward.
constexpr Segment kBegins[] = {Segment::kDown, Segment::kMlpMoments, Segment::kOutput,
                               Segment::kAttentionMoments};

bool is_for_inputs(const Op& op) { return op.kernel == &draft::kBackwardInput; }
bool is_for_weights(const Op& op) { return op.kernel == &draft::kBackwardWeight; }

bool same_value(const Operand& a, const Operand& b) {
  return a.array == b.array && a.index == b.index;
}

bool holds(const std::vector<Operand>& operands, const Operand& value) {
  return std::ranges::any_of(operands,
                             [&](const Operand& operand) { return same_value(operand, value); });
}

/// Whether it reads more than gradients of norms, which take little, and may still be summed.
bool reads_rows(const Op& op) {
  const RangeUses uses = range_uses(draft::range_of(op), Phase::kBackwardWeight);
  for (int value = 0; value < kNumBlockValues; ++value)
    if (uses.reads.test(static_cast<size_t>(value)) &&
        !is_norm_gradient(static_cast<BlockValue>(value)))
      return true;
  return false;
}

}  // namespace

EarlyWeights::EarlyWeights(const ModelShape& shape, const draft::StepOptions& options)
    : shape_(shape),
      dtype_(options.dtype),
      hides_sums_(options.hides_sums),
      end_(options.attends_apart() ? static_cast<int>(Segment::kMlpMoments) : kNumSegments) {}

void EarlyWeights::apply(draft::Visit& visit) const {
  Ops& ops = visit.ops;
  const auto behind = std::find_if(ops.rbegin(), ops.rend(), is_for_inputs).base();
  if (behind == ops.begin()) return;
  const Ops last(behind, ops.end());
  ops.erase(behind, ops.end());
  Ops parts, rest;
  for (const Op& op : last) {
    if (!is_for_weights(op))
      ops.push_back(op);  // a sum of what weights read
    else if (draft::range_of(op).end > end_)
      rest.push_back(op);
    else
      std::ranges::move(parts_of(op, visit.block), std::back_inserter(parts));
  }
  for (const Op& part : parts)
    if (reads_rows(part))
      ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(place_of(part, ops)), part);
    else
      rest.push_back(part);
  ops.insert(ops.end(), rest.begin(), rest.end());
}

Ops EarlyWeights::parts_of(const Op& weights, int64_t block) const {
  Ops parts;
  const SegmentRange range = draft::range_of(weights);
  int end = range.end;
  for (const Segment segment : kBegins) {
    const SegmentRange piece = {std::max(range.begin, static_cast<int>(segment)), end};
    if (piece.begin >= piece.end) continue;
    end = piece.begin;
    if (range_uses(piece, Phase::kBackwardWeight).reads.none()) continue;
    Op part = weights;
    draft::set_range(part, piece, {&weights, 1});
    draft::price(part, shape_, block, dtype_);
    parts.push_back(std::move(part));
  }
  return parts;
}

size_t EarlyWeights::place_of(const Op& part, const Ops& ops) const {
  const auto makes = [&](const Op& op) {
    return std::ranges::any_of(op.writes,
                               [&](const Operand& written) { return holds(part.reads, written); });
  };
  auto place = std::find_if(ops.rbegin(), ops.rend(), makes).base();
  const auto stands_beside = [](const Op& op) {
    return program::is_communication(op.kind) || is_for_weights(op);
  };
  if (hides_sums_) place = std::find_if_not(place, ops.end(), stands_beside);
  return static_cast<size_t>(place - ops.begin());
}

void end_behind_last_use(draft::Visit& visit) {
  const Ops before = std::exchange(visit.ops, {});
  const std::vector<Operand> frees = std::exchange(visit.frees, {});
  std::vector<std::vector<Operand>> ends(before.size());  // behind each op
  for (const Operand& value : frees) {
    const auto names = [&](const Op& op) {
      return holds(op.reads, value) || holds(op.writes, value);
    };
    const auto behind = std::find_if(before.rbegin(), before.rend(), names).base();
    if (behind == before.end() || behind == before.begin())
      visit.frees.push_back(value);
    else
      ends[static_cast<size_t>(behind - before.begin()) - 1].push_back(value);
  }
  for (size_t at = 0; at < before.size(); ++at) {
    visit.ops.push_back(before[at]);
    for (const Operand& value : ends[at]) visit.ops.push_back(draft::free_op(value));
  }
}

}  // namespace strait::strategy
