#include "strait/strategy/order/block_segments.h"

#include <algorithm>

#include "strait/base/errors.h"
#include "strait/draft/segment_ops.h"

namespace strait::strategy {
namespace {

using draft::StepOptions;
using program::Op;
using program::Operand;
using Ops = std::vector<Op>;

constexpr SegmentRange range_of(Segment first, Segment last) {
  return {static_cast<int>(first), static_cast<int>(last) + 1};
}
constexpr SegmentRange kAttentionNormAndQkv =
    range_of(Segment::kAttentionMoments, Segment::kQkvAdd);
constexpr SegmentRange kOutputAndAdd = range_of(Segment::kOutput, Segment::kAttentionAdd);
constexpr SegmentRange kMlpNormAndUp = range_of(Segment::kMlpMoments, Segment::kUpAdd);
constexpr SegmentRange kDownAndAdd = range_of(Segment::kDown, Segment::kMlpAdd);

/// Makes the ops of block 0, and the values inside it.
class Maker {
 public:
  Maker(program::Program& program, const ModelShape& shape, const StepOptions& options,
        const ChainArrays& arrays, bool splits)
      : program_(program),
        shape_(shape),
        options_(options),
        arrays_(arrays),
        splits_(splits),
        inside_(draft::kNumBlockOperands, -1) {}

  Op make_op(SegmentRange range, Phase phase, bool keeps = true) {
    Op op = draft::block_op(draft::segment_kernel(phase), 0, {range.begin, range.end});
    op.attributes[draft::kBatch] = options_.micro_batch_size;
    op.attributes[draft::kLength] = options_.tokens;
    op.attributes[draft::kTraining] = int64_t{options_.purpose == draft::Purpose::kTrain ? 1 : 0};
    for (const draft::OperandUse& use : draft::segment_operands(range, phase, keeps)) {
      if (is_empty(use.slot)) continue;
      const Operand operand = operand_of(use.slot);
      draft::add_operand(op, operand.array, operand.index, use.access, use.slot);
    }
    draft::price(op, shape_, 0, options_.dtype);
    return op;
  }

  Ops make(SegmentRange range, Phase phase, bool keeps = true) {
    Ops ops;
    for (const SegmentRange piece : cut_at_exchanges(range, phase))
      ops.push_back(make_op(piece, phase, keeps));
    return ops;
  }

  /// Arrays with a value for every block, which outlive its backward.
  std::vector<int> deferred_arrays() const {
    std::vector<int> arrays;
    for (int slot = 0; slot < draft::kNumBlockOperands; ++slot)
      if (const int array = inside_[static_cast<size_t>(slot)]; array >= 0 && outlives(slot))
        arrays.push_back(array);
    return arrays;
  }

 private:
  bool outlives(int slot) const { return splits_ && draft::is_deferred(slot); }

  Operand operand_of(int slot) {
    switch (slot) {
      case draft::kTokens:
        return {arrays_.batch, {}};
      case draft::kSequences:
        return {arrays_.sequences, {}};
      case draft::kInput:
        return {arrays_.activation, {-1}};
      case draft::kOutput:
        return {arrays_.activation, {}};
      case draft::kSaved:
        return {arrays_.saved, {}};
      case draft::kOutputGradient:
        return {arrays_.gradient, {}};
      case draft::kInputGradient:
        return {arrays_.gradient, {-1}};
      default:
        return {inside(slot), {}};
    }
  }

  /// A value that the family does not have.
  bool is_empty(int slot) const {
    return slot >= draft::kBlockValues &&
           value_elements(static_cast<BlockValue>(slot - draft::kBlockValues), extent()) == 0;
  }

  BlockExtent extent() const { return draft::extent_of(shape_, options_); }

  /// The array of what passes inside a block.
  int inside(int slot) {
    ensure(draft::is_inside_block(slot), "a range of segments with an operand of other kernels");
    int& array = inside_[static_cast<size_t>(slot)];
    if (array >= 0) return array;
    draft::WholeValues values{"bundle", 1, options_.dtype, bundle_offsets(extent()).elements};
    if (slot == draft::kDeferred) {
      values.name = "deferred";
      values.elements = deferred_offsets(extent()).elements;
    } else if (slot != draft::kBundle) {
      const auto value = static_cast<BlockValue>(slot - draft::kBlockValues);
      const int64_t bytes = value_elements(value, extent()) * dtype_bytes(options_.dtype);
      values.name = value_name(value);
      values.dtype = value_dtype(value, options_.dtype);
      values.elements = bytes / dtype_bytes(values.dtype);
    }
    if (outlives(slot)) values.count = static_cast<int64_t>(shape_.blocks.size()) - 1;
    return array = draft::declare(program_, values);
  }

  program::Program& program_;
  const ModelShape& shape_;
  const StepOptions& options_;
  const ChainArrays& arrays_;
  const bool splits_;
  std::vector<int> inside_;  // [slot]
};

}  // namespace

BlockSegments::BlockSegments(program::Program& program, const ModelShape& shape,
                             const StepOptions& options, const ChainArrays& arrays, bool splits)
    : arrays_(arrays) {
  Maker maker(program, shape, options, arrays, splits);
  const bool trains = options.purpose == draft::Purpose::kTrain;
  const bool recomputes = options.recompute.every > 0;
  if (!trains || recomputes) plain_ = maker.make({}, Phase::kForward, false);
  if (!trains) return;
  keeping_ = maker.make({}, Phase::kForward);
  // The result of the last piece is read again only by a norm behind it.
  const int pieces = shape.style.norm_behind ? 4 : 3;
  if (recomputes) recompute_ = maker.make(segments_of_pieces(0, pieces), Phase::kForward);
  backward_ = maker.make({}, Phase::kBackwardInput);
  if (!splits) {
    backward_.push_back(maker.make_op({}, Phase::kBackwardWeight));
    return;
  }
  for (const SegmentRange range : {kDownAndAdd, kOutputAndAdd})
    backward_.push_back(maker.make_op(range, Phase::kBackwardWeight));
  for (const SegmentRange range : {kMlpNormAndUp, kAttentionNormAndQkv})
    deferred_.push_back(maker.make_op(range, Phase::kBackwardWeight));
  deferred_arrays_ = maker.deferred_arrays();
}

std::vector<Operand> BlockSegments::deferred_values(int64_t block) const {
  std::vector<Operand> values;
  for (const int array : deferred_arrays_) values.push_back({array, {block}});
  return values;
}

bool BlockSegments::is_deferred(const Operand& operand) const {
  return std::ranges::find(deferred_arrays_, operand.array) != deferred_arrays_.end();
}

Ops BlockSegments::of_block(const Ops& ops, int64_t block) const {
  ensure(block > 0, "a transformer block stands behind the embedding");
  Ops own = ops;
  for (Op& op : own) {
    op.attributes[draft::kBlock] = program::Index{block};
    for (auto* operands : {&op.reads, &op.writes})
      for (Operand& operand : *operands)
        if (operand.array == arrays_.activation || operand.array == arrays_.gradient ||
            operand.array == arrays_.saved || is_deferred(operand))
          operand.index.constant += block;
  }
  return own;
}

}  // namespace strait::strategy
