#include "strait/strategy/order/block_segments.h"

#include "strait/base/errors.h"
#include "strait/draft/segment_ops.h"

namespace strait::strategy {
namespace {

using draft::StepOptions;
using program::Op;
using program::Operand;
using Ops = std::vector<Op>;

/// Makes the ops of block 0, and the values inside it.
class Maker {
 public:
  Maker(program::Program& program, const ModelShape& shape, const StepOptions& options,
        const ChainArrays& arrays)
      : program_(program),
        shape_(shape),
        options_(options),
        arrays_(arrays),
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
    for (const SegmentRange piece : cut_behind_sums(range, phase))
      ops.push_back(make_op(piece, phase, keeps));
    return ops;
  }

 private:
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

  BlockExtent extent() const {
    return block_extent(shape_, options_.micro_batch_size, options_.tokens, options_.dtype);
  }

  /// The array of what passes inside a block.
  int inside(int slot) {
    ensure(draft::is_inside_block(slot), "a range of segments with an operand of other kernels");
    int& array = inside_[static_cast<size_t>(slot)];
    if (array >= 0) return array;
    draft::WholeValues values{"bundle", 1, options_.dtype, bundle_layout(extent()).elements};
    if (slot != draft::kBundle) {
      const auto value = static_cast<BlockValue>(slot - draft::kBlockValues);
      const int64_t bytes = value_elements(value, extent()) * dtype_bytes(options_.dtype);
      values.name = value_name(value);
      values.dtype = value_dtype(value, options_.dtype);
      values.elements = bytes / dtype_bytes(values.dtype);
    }
    return array = draft::declare(program_, values);
  }

  program::Program& program_;
  const ModelShape& shape_;
  const StepOptions& options_;
  const ChainArrays& arrays_;
  std::vector<int> inside_;  // [slot]
};

}  // namespace

BlockSegments::BlockSegments(program::Program& program, const ModelShape& shape,
                             const StepOptions& options, const ChainArrays& arrays)
    : arrays_(arrays) {
  Maker maker(program, shape, options, arrays);
  const bool trains = options.purpose == draft::Purpose::kTrain;
  const bool recomputes = options.recompute.every > 0;
  if (!trains || recomputes) plain_ = maker.make({}, Phase::kForward, false);
  if (!trains) return;
  keeping_ = maker.make({}, Phase::kForward);
  // The result of the last piece is read again only by a norm behind it.
  const int pieces = shape.style.norm_behind ? 4 : 3;
  if (recomputes) recompute_ = maker.make(segments_of_pieces(0, pieces), Phase::kForward);
  backward_ = maker.make({}, Phase::kBackwardInput);
  backward_.push_back(maker.make_op({}, Phase::kBackwardWeight));
}

Ops BlockSegments::of_block(const Ops& ops, int64_t block) const {
  ensure(block > 0, "a transformer block stands behind the embedding");
  Ops own = ops;
  for (Op& op : own) {
    op.attributes[draft::kBlock] = program::Index{block};
    for (auto* operands : {&op.reads, &op.writes})
      for (Operand& operand : *operands)
        if (operand.array == arrays_.activation || operand.array == arrays_.gradient ||
            operand.array == arrays_.saved)
          operand.index.constant += block;
  }
  return own;
}

}  // namespace strait::strategy
