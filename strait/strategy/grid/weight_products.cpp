#include "strait/strategy/grid/weight_products.h"

#include <algorithm>

#include "strait/draft/segment_ops.h"

namespace strait::strategy {
namespace {

using program::Op;

/// In the order of the backward.
constexpr Segment kMatrices[] = {Segment::kDown, Segment::kUp, Segment::kOutput, Segment::kQkv};

SegmentRange only(Segment segment) {
  const int index = static_cast<int>(segment);
  return {index, index + 1};
}

bool is_for_inputs(const Op& op) { return op.kernel == &draft::kBackwardInput; }
bool is_for_weights(const Op& op) { return op.kernel == &draft::kBackwardWeight; }

/// Where rows are split, less: what is normed is made, and gathered, before it is needed.
ValueSet made_by(const Op& op, bool splits_rows) {
  const RangeUses uses = range_uses(draft::range_of(op), Phase::kBackwardInput, true, splits_rows);
  return uses.writes | uses.inside;
}

ValueSet needs_of(SegmentRange range) { return range_uses(range, Phase::kBackwardWeight).reads; }

}  // namespace

bool is_gradient_sum(int slot) {
  using enum BlockValue;
  static const ValueSet sums = value_set(
      {kActivatedGradient, kNormedMlpGradient, kAttentionGradient, kNormedAttentionGradient});
  return (draft::values_in(slot) & sums).any();
}

WeightProducts::WeightProducts(const draft::Visit& visit, const ModelShape& shape, Dtype dtype)
    : shape_(shape), block_(visit.block), dtype_(dtype) {
  for (const Op& op : visit.ops)
    if (is_for_inputs(op)) coming_ |= made_by(op, shape.splits_rows);
  if (coming_.none()) return;
  for (const Op& op : visit.ops)
    for (const Segment segment : kMatrices)
      if (is_for_weights(op) && draft::range_of(op).holds(segment))
        products_.push_back({&op, segment});
}

void WeightProducts::note(const Op& op) {
  if (is_for_inputs(op)) coming_ &= ~made_by(op, shape_.splits_rows);
}

std::vector<Op> WeightProducts::take_ready(size_t most) {
  std::vector<Op> ready;
  for (Product& product : products_) {
    const SegmentRange range = only(product.segment);
    if (ready.size() == most) break;
    if (product.taken || (needs_of(range) & coming_).any()) continue;
    product.taken = true;
    ready.push_back(part(*product.op, range));
  }
  return ready;
}

std::vector<Op> WeightProducts::rest(const Op& op) const {
  std::vector<Op> rest;
  SegmentRange range = draft::range_of(op);
  const int whole = range.end;
  const auto add = [&](int begin, int end) {
    if (begin < end && needs_of({begin, end}).any()) rest.push_back(part(op, {begin, end}));
  };
  for (const Product& product : products_) {
    const int at = static_cast<int>(product.segment);
    if (!product.taken || !draft::range_of(op).holds(product.segment)) continue;
    add(at + 1, range.end);
    range.end = at;
  }
  if (range.end == whole) return {op};
  add(range.begin, range.end);
  return rest;
}

Op WeightProducts::part(const Op& op, SegmentRange range) const {
  Op part = op;
  draft::set_range(part, range, {&op, 1});
  draft::price(part, shape_, block_, dtype_);
  return part;
}

}  // namespace strait::strategy
