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
constexpr SegmentRange kUpToAttentionAdd =
    range_of(Segment::kAttentionMoments, Segment::kAttentionAdd);
constexpr SegmentRange kFromMlpNorm = range_of(Segment::kMlpMoments, Segment::kMlpAdd);
constexpr SegmentRange kDownAndAdd = range_of(Segment::kDown, Segment::kMlpAdd);

/// A range in pieces before and behind the border between attention's segments and the others, in
/// the order of the phase.
std::vector<SegmentRange> halves_of(SegmentRange range, Phase phase) {
  const int border = kFromMlpNorm.begin;
  if (range.begin >= border || range.end <= border) return {range};
  std::vector<SegmentRange> halves = {{range.begin, border}, {border, range.end}};
  if (phase != Phase::kForward) std::ranges::reverse(halves);
  return halves;
}

/// Makes the ops of block 0, and the values inside it.
class Maker {
 public:
  Maker(draft::Draft& draft, const ModelShape& shape, const StepOptions& options,
        const ChainArrays& arrays, bool splits)
      : draft_(draft),
        shape_(shape),
        options_(options),
        arrays_(arrays),
        splits_(splits),
        inside_(draft::kNumBlockOperands, -1),
        own_(draft::kNumBlockOperands, -1),
        again_(draft::kNumBlockOperands, -1) {}

  Op make_op(SegmentRange range, Phase phase, bool keeps = true) {
    Op op = draft::block_op(draft::segment_kernel(phase), 0, {range.begin, range.end});
    op.attributes[draft::kBatch] = options_.micro_batch_size;
    const bool attends = options_.attends_apart() && range.end <= kUpToAttentionAdd.end;
    op.attributes[draft::kLength] = attends ? options_.attention_tokens : options_.tokens;
    op.attributes[draft::kTraining] = int64_t{options_.purpose == draft::Purpose::kTrain ? 1 : 0};
    const Rows rows = rows_of(range, phase);
    const draft::Places places{keeps, shape_.splits_rows, arrays_.up >= 0,
                               shape_.sequence > 1 && !splits_};
    for (const draft::OperandUse& use : draft::segment_operands(range, phase, places)) {
      if (is_empty(use.slot)) continue;
      const Operand operand = operand_of(use.slot, rows);
      draft::add_operand(op, operand.array, operand.index, use.access, use.slot);
    }
    draft::price(op, shape_, 0, options_.dtype);
    return op;
  }

  Ops make(SegmentRange range, Phase phase, bool keeps = true, bool behind_forward = false) {
    Ops ops, sums;
    for (const SegmentRange piece : pieces_of(range, phase)) {
      ops.push_back(make_op(piece, phase, keeps));
      if (!shape_.splits_rows) continue;
      exchange_rows(ops, sums, rows_of(piece, phase));
      if (phase != Phase::kBackwardInput) continue;
      if (piece.begin == static_cast<int>(Segment::kMlpBranch))
        gather_normed(Segment::kMlpNorm, BlockValue::kNormedMlp, behind_forward, ops);
      if (piece.begin == static_cast<int>(Segment::kAttentionBranch))
        gather_normed(Segment::kAttentionNorm, BlockValue::kNormedAttention, behind_forward, ops);
    }
    ops.insert(ops.end(), sums.begin(), sums.end());
    return ops;
  }

  /// What one range is for the gradients of weights.
  Ops make_weights() {
    Ops ops;
    const std::vector<SegmentRange> ranges = options_.attends_apart()
                                                 ? halves_of({}, Phase::kBackwardWeight)
                                                 : std::vector<SegmentRange>{{}};
    for (const SegmentRange range : ranges) ops.push_back(make_op(range, Phase::kBackwardWeight));
    return ops;
  }

  /// Arrays with a value for every block, which outlive its backward.
  std::vector<int> deferred_arrays() const {
    std::vector<int> arrays = again_;
    for (int slot = 0; slot < draft::kNumBlockOperands; ++slot)
      if (outlives(slot, Rows::kAll)) arrays.push_back(inside_[static_cast<size_t>(slot)]);
    std::erase(arrays, -1);
    return arrays;
  }

 private:
  /// Which rows of a value an op has that ranks of x exchange, where rows are split. kAgain: all,
  /// for a backward that outlives the forward's.
  enum class Rows : uint8_t { kAll, kOwn, kAgain };

  Rows rows_of(SegmentRange range, Phase phase) const {
    if (!shape_.splits_rows) return Rows::kAll;
    if (phase != Phase::kBackwardWeight && is_between_products(static_cast<Segment>(range.begin)))
      return Rows::kOwn;
    return phase != Phase::kForward && splits_ ? Rows::kAgain : Rows::kAll;
  }

  std::vector<SegmentRange> pieces_of(SegmentRange range, Phase phase) const {
    std::vector<SegmentRange> pieces = cut_at_exchanges(range, phase, shape_.splits_rows);
    if (!options_.attends_apart()) return pieces;
    std::vector<SegmentRange> cut;
    for (const SegmentRange piece : pieces)
      for (const SegmentRange half : halves_of(piece, phase)) cut.push_back(half);
    return cut;
  }

  static bool is_normed(int slot) {
    return slot == draft::block_slot(BlockValue::kNormedAttention) ||
           slot == draft::block_slot(BlockValue::kNormedMlp);
  }
  static bool is_norm_gradient_of_deferred(int slot) {
    return slot == draft::block_slot(BlockValue::kAttentionNormGradient) ||
           slot == draft::block_slot(BlockValue::kMlpNormGradient);
  }
  bool outlives(int slot, Rows rows) const {
    if (!splits_ || rows == Rows::kOwn) return false;
    const bool apart = shape_.splits_rows && is_norm_gradient_of_deferred(slot);
    return draft::is_deferred(slot) || apart || rows == Rows::kAgain;
  }

  /// A transfer of rows; the pass that shares blocks says among whom. Slots stay until then.
  Op transfer(program::OpKind kind, const Operand& from, const Operand& to) const {
    Op op;
    op.kind = kind;
    const auto elements = [&](const Operand& operand) {
      return draft_.program.arrays[static_cast<size_t>(operand.array)].partition.elements;
    };
    if (kind != program::OpKind::kAllReduce)
      op.partition = {std::max(elements(from), elements(to)),
                      std::min(elements(from), elements(to))};
    op.reads = {program::as(from, program::Access::kRead, from.slot)};
    op.writes = {program::as(to, program::Access::kWrite, to.slot)};
    return op;
  }

  /// Behind an op over a range, what of its results goes to or comes from others. Sums of gradients
  /// of norms, which nobody waits for, go behind the next exchange.
  void exchange_rows(Ops& ops, Ops& sums, Rows rows) {
    const std::vector<Operand> written = ops.back().writes;
    bool exchanges = false;
    for (const Operand& operand : written) {
      if (!draft::is_exchanged_by_rows(operand.slot) || operand.access != program::Access::kWrite)
        continue;
      const bool gathers = rows == Rows::kOwn;
      Operand to = operand_of(operand.slot, gathers ? Rows::kAll : Rows::kOwn);
      to.slot = operand.slot;
      ops.push_back(transfer(
          gathers ? program::OpKind::kAllGather : program::OpKind::kReduceScatter, operand, to));
      exchanges = true;
    }
    if (exchanges) ops.insert(ops.end(), sums.begin(), sums.end());
    if (exchanges) sums.clear();
    for (const Operand& operand : written) {
      if (operand.slot < draft::kBlockValues || operand.slot >= draft::kEndValues) continue;
      if (is_norm_gradient(static_cast<BlockValue>(operand.slot - draft::kBlockValues)))
        sums.push_back(transfer(program::OpKind::kAllReduce, program::as(operand, operand.access),
                                program::as(operand, operand.access)));
    }
  }

  /// In a backward, all rows of what a product has read, which its weights need: from what the
  /// forward has kept, or where that stands in the same visit from what it has made.
  void gather_normed(Segment norm, BlockValue value, bool behind_forward, Ops& ops) {
    if (behind_forward && !splits_) return;
    const int slot = draft::block_slot(value);
    Operand own = operand_of(slot, Rows::kOwn);
    Operand all = operand_of(slot, splits_ ? Rows::kAgain : Rows::kAll);
    own.slot = all.slot = slot;
    if (!behind_forward) ops.push_back(normalize_again(norm, own));
    ops.push_back(transfer(program::OpKind::kAllGather, own, all));
  }

  Op normalize_again(Segment norm, const Operand& own) {
    const int index = static_cast<int>(norm);
    Op op = make_op({index, index + 1}, Phase::kForward);
    op.kernel = &draft::kNormalizeAgain;
    std::erase_if(op.reads, [](const Operand& operand) {
      return operand.slot != draft::kTokens && operand.slot != draft::kInput;
    });
    op.reads.push_back(program::as({arrays_.saved, {}}, program::Access::kRead, draft::kSaved));
    op.writes = {program::as(own, program::Access::kWrite, own.slot)};
    op.attributes[draft::kWorkspace] = int64_t{0};
    return op;
  }

  Operand operand_of(int slot, Rows rows) {
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
      case draft::kKeptUp:
        return {arrays_.up, {}};
      case draft::kOutputGradient:
        return {arrays_.gradient, {}};
      case draft::kInputGradient:
        return {arrays_.gradient, {-1}};
      default:
        return {inside(slot, rows), {}};
    }
  }

  /// A value that the family does not have.
  bool is_empty(int slot) const {
    return slot >= draft::kBlockValues &&
           value_elements(static_cast<BlockValue>(slot - draft::kBlockValues), extent()) == 0;
  }

  BlockExtent extent() const { return draft::extent_of(shape_, options_); }

  /// The array of what passes inside a block.
  int inside(int slot, Rows rows) {
    ensure(draft::is_inside_block(slot), "a range of segments with an operand of other kernels");
    if (!shape_.splits_rows || !draft::is_exchanged_by_rows(slot)) rows = Rows::kAll;
    if (rows == Rows::kAgain && !is_normed(slot)) rows = Rows::kAll;
    std::vector<int>& arrays = rows == Rows::kOwn ? own_ : rows == Rows::kAgain ? again_ : inside_;
    int& array = arrays[static_cast<size_t>(slot)];
    if (array >= 0) return array;
    draft::WholeValues values = values_of(slot);
    if (rows == Rows::kOwn) {
      values.name += ".own";
      values.elements /= shape_.x;
    }
    if (rows == Rows::kAgain) values.name += ".again";
    if (outlives(slot, rows)) values.count = static_cast<int64_t>(shape_.blocks.size()) - 1;
    array = draft::declare(draft_.program, values);
    if (rows == Rows::kOwn) draft_.own_rows.push_back(array);
    return array;
  }

  draft::WholeValues values_of(int slot) const {
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
    return values;
  }

  draft::Draft& draft_;
  const ModelShape& shape_;
  const StepOptions& options_;
  const ChainArrays& arrays_;
  const bool splits_;
  std::vector<int> inside_, own_, again_;  // [slot] arrays, by Rows
};

}  // namespace

BlockSegments::BlockSegments(draft::Draft& draft, const ModelShape& shape,
                             const StepOptions& options, const ChainArrays& arrays, bool splits)
    : arrays_(arrays) {
  Maker maker(draft, shape, options, arrays, splits);
  const bool trains = options.purpose == draft::Purpose::kTrain;
  const bool recomputes = options.recompute.every > 0;
  if (!trains || recomputes) plain_ = maker.make({}, Phase::kForward, false);
  if (!trains) return;
  keeping_ = maker.make({}, Phase::kForward);
  // The result of the last piece is read again only by a norm behind it.
  const int pieces = shape.style.norm_behind ? 4 : 3;
  if (recomputes) recompute_ = maker.make(segments_of_pieces(0, pieces), Phase::kForward);
  backward_ = maker.make({}, Phase::kBackwardInput);
  behind_forward_ = maker.make({}, Phase::kBackwardInput, true, true);
  for (Ops* backward : {&backward_, &behind_forward_}) {
    if (!splits)
      for (Op& weights : maker.make_weights()) backward->push_back(std::move(weights));
    for (const SegmentRange range : {kDownAndAdd, kOutputAndAdd})
      if (splits) backward->push_back(maker.make_op(range, Phase::kBackwardWeight));
  }
  if (!splits) return;
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
    if (op.kernel) op.attributes[draft::kBlock] = program::Index{block};
    for (auto* operands : {&op.reads, &op.writes})
      for (Operand& operand : *operands)
        if (operand.array == arrays_.activation || operand.array == arrays_.gradient ||
            operand.array == arrays_.saved || operand.array == arrays_.up || is_deferred(operand))
          operand.index.constant += block;
  }
  return own;
}

}  // namespace strait::strategy
