#include "strait/shape/segment.h"

#include <algorithm>
#include <limits>

#include "strait/base/errors.h"

namespace strait {
namespace {

using enum BlockValue;
using enum Access;
void insert(ValueSet& set, BlockValue value) { set.set(value_index(value)); }
bool holds(const ValueSet& set, BlockValue value) { return set.test(value_index(value)); }

/// The segments of a range in the order in which a phase does them.
std::vector<Segment> in_order(SegmentRange range, Phase phase) {
  std::vector<Segment> order;
  for (int index = range.begin; index < range.end; ++index)
    order.push_back(static_cast<Segment>(index));
  if (phase != Phase::kForward) std::ranges::reverse(order);
  return order;
}

/// A product and what stands behind its sum, in the order of the chain.
struct Joint {
  Phase phase;
  Segment first, last;
  BlockValue sum;
  bool holds(Segment segment) const { return first <= segment && segment <= last; }
  Segment end() const { return phase == Phase::kForward ? last : first; }
};
constexpr Joint kJoints[] = {
    {Phase::kForward, Segment::kQkv, Segment::kQkvAdd, kQkvSum},
    {Phase::kForward, Segment::kOutput, Segment::kAttentionAdd, kOutputSum},
    {Phase::kForward, Segment::kUp, Segment::kUpAdd, kUpSum},
    {Phase::kForward, Segment::kDown, Segment::kMlpAdd, kDownSum},
    {Phase::kBackwardInput, Segment::kUpAdd, Segment::kDown, kActivatedGradient}};

/// Whether they are one: the sum does not exist then.
bool is_joined(const Joint& joint, SegmentRange range, Phase phase, const ValueSet& given) {
  return joint.phase == phase && range.holds(joint.first) && range.holds(joint.last) &&
         !holds(given, joint.sum);
}

/// Whether the segment and the next one in the order of the phase are one.
bool joins_next(Segment segment, SegmentRange range, Phase phase, const ValueSet& given) {
  return std::ranges::any_of(kJoints, [&](const Joint& joint) {
    return joint.holds(segment) && segment != joint.end() && is_joined(joint, range, phase, given);
  });
}

ValueSet joined_sums(SegmentRange range, Phase phase, const ValueSet& given) {
  ValueSet sums;
  for (const Joint& joint : kJoints)
    if (is_joined(joint, range, phase, given)) insert(sums, joint.sum);
  return sums;
}

/// Values that leave a range whoever reads them: other segments' operands, what later phases
/// read, the block's results.
ValueSet leaving(SegmentRange range, Phase phase, bool keeps, bool splits_rows) {
  ValueSet values = value_set({kOutput, kInputGradient});
  if (phase == Phase::kForward && keeps) values |= kept_values();
  if (phase == Phase::kBackwardInput)
    values |= bundle_values() | value_set({kQueryKeyNormGradient, kGatheredKeyGradient});
  for (int index = 0; index < kNumSegments; ++index) {
    const auto segment = static_cast<Segment>(index);
    if (range.holds(segment)) continue;
    for (const ValueUse& use : segment_uses(segment, phase, splits_rows))
      if (use.access != kWrite) insert(values, use.value);
  }
  return values;
}

/// The part of a value's life that lies in a range: the first and the last segment, counted in
/// order, that use it.
struct Life {
  int first = std::numeric_limits<int>::max(), last = -1;
  bool used() const { return last >= 0; }
  bool meets(const Life& other) const { return first <= other.last && other.first <= last; }
};

/// What is joined is one step: its operands are alive together.
std::array<Life, kNumBlockValues> lives(SegmentRange range, Phase phase, const ValueSet& given,
                                        bool splits_rows) {
  std::array<Life, kNumBlockValues> result;
  int step = 0;
  for (const Segment segment : in_order(range, phase)) {
    for (const ValueUse& use : segment_uses(segment, phase, splits_rows)) {
      Life& life = result[value_index(use.value)];
      life.first = std::min(life.first, step);
      life.last = std::max(life.last, step);
    }
    if (!joins_next(segment, range, phase, given)) ++step;
  }
  return result;
}

/// A value that has its place in the workspace.
struct Placed {
  int64_t begin = 0, end = 0;
  Life life;
};

/// The lowest place for `elements` that touches nothing alive at the same time.
Placed place(std::vector<Placed>& placed, int64_t elements, const Life& life) {
  std::ranges::sort(placed, {}, &Placed::begin);
  int64_t begin = 0;
  for (const Placed& other : placed)
    if (other.life.meets(life) && other.begin < begin + elements)
      begin = std::max(begin, other.end);
  placed.push_back({begin, begin + elements, life});
  return placed.back();
}

int64_t aligned(int64_t elements, const BlockExtent& extent) {
  const int64_t unit = kPartAlignment * extent.wide;
  return (elements + unit - 1) / unit * unit;
}

void drop_empty(ValueOffsets& offsets, const BlockExtent& extent) {
  for (int number = 0; number < kNumBlockValues; ++number) {
    const auto value = static_cast<BlockValue>(number);
    const bool apart =
        extent.row_split > 1 && (is_exchanged_by_rows(value) || is_norm_gradient(value));
    if (apart || value_elements(value, extent) == 0) offsets[value] = -1;
  }
}

bool is_wide(BlockValue value) {
  static const ValueSet wide = value_set({kAttentionMean,
                                          kAttentionRstd,
                                          kQkvSum,
                                          kQueryKeyRstd,
                                          kLogSumExp,
                                          kOutputSum,
                                          kAttentionBranchRstd,
                                          kMlpMean,
                                          kMlpRstd,
                                          kUpSum,
                                          kDownSum,
                                          kMlpBranchRstd,
                                          kMlpBranchGradient,
                                          kMlpNormGradient,
                                          kAttentionBranchGradient,
                                          kDelta,
                                          kQuerySum,
                                          kQueryKeyNormGradient,
                                          kAttentionNormGradient,
                                          kGatheredKeyGradient,
                                          kKeyGradient,
                                          kAttentionSum,
                                          kHeadDeltaSend,
                                          kHeadDeltaReceive});
  return holds(wide, value);
}

bool is_exact(BlockValue value) {
  static const ValueSet moments =
      value_set({kAttentionMoments, kAttentionBranchMoments, kMlpMoments, kMlpBranchMoments,
                 kMlpBranchGradientMoments, kMlpGradientMoments, kAttentionBranchGradientMoments,
                 kAttentionGradientMoments});
  return holds(moments, value);
}

/// What the segments up to attention_add have for themselves, but for attention's own.
bool is_of_first_segments(BlockValue value) {
  static const ValueSet first =
      value_set({kAttentionMoments, kAttentionMean, kAttentionRstd, kNormedAttention, kQkvSum,
                 kRawQueryKey, kQueryKeyRstd, kOutputSum, kAttentionBranch, kAttentionBranchMoments,
                 kAttentionBranchRstd, kAttentionBranchGradientMoments, kOutputSumGradient,
                 kKeptAttention, kNormedAttentionGradient, kAttentionGradientMoments});
  return holds(first, value);
}

/// Numbers of a value.
int64_t count_of(BlockValue value, const BlockExtent& extent) {
  const bool first = is_of_first_segments(value);
  const int64_t attended = extent.attended_rows();
  const int64_t rows = first ? extent.first_rows() : extent.rows;
  const int64_t own_rows = first ? extent.first_own_rows() : extent.own_rows();
  switch (value) {
    case kInput:
    case kMiddle:
    case kOutput:
    case kOutputGradient:
    case kMiddleGradient:
    case kInputGradient:
      return (extent.attends_apart ? extent.border_rows() : own_rows) * extent.width;
    case kAttentionMean:
    case kMlpMean:
      return extent.style.rms_norm || !extent.style.norm_before ? 0 : own_rows;
    case kAttentionRstd:
    case kMlpRstd:
      return extent.style.norm_before ? own_rows : 0;
    case kAttentionBranchRstd:
    case kMlpBranchRstd:
      return extent.style.norm_behind ? own_rows : 0;
    case kAttentionMoments:
    case kAttentionGradientMoments:
    case kMlpMoments:
    case kMlpGradientMoments:
      return own_rows * extent.norm_moments();
    case kAttentionBranchMoments:
    case kAttentionBranchGradientMoments:
    case kMlpBranchMoments:
    case kMlpBranchGradientMoments:
      return own_rows * extent.branch_moments();
    case kAttentionBranch:
    case kMlpBranch:
      return own_rows * extent.branch_width();
    case kAttentionBranchGradient:
    case kMlpBranchGradient:
      return extent.branch_width();
    case kRawQueryKey:
      return rows * extent.query_key_width();
    case kQueryKeyRstd:
      return rows * extent.query_key_norms();
    case kQueryKeyNormGradient:
      return extent.query_key_weights();
    case kLogSumExp:
    case kDelta:
      return attended * extent.heads;
    case kQkvSum:
      return rows * extent.qkv_width();
    case kQkv:
    case kQkvGradient:
      return attended * extent.qkv_width();
    case kKeptAttention:
      return rows * extent.attention_width();
    case kAttention:
    case kAttentionGradient:
      return attended * extent.attention_width();
    case kQuerySum:
      return extent.wide > 1 ? attended * extent.attention_width() : 0;
    case kAttentionSum:
      return extent.wide > 1 && extent.is(SequenceEngine::kRing)
                 ? attended * extent.attention_width()
                 : 0;
    case kUp:
    case kUpSum:
    case kUpGradient:
      return rows * extent.up_width();
    case kActivated:
    case kActivatedGradient:
      return rows * extent.ffn_width;
    case kKeys:
    case kKeyGradient:
      return extent.sequence > 1 && !extent.is(SequenceEngine::kHeads)
                 ? attended * 2 * extent.kv_width()
                 : 0;
    case kMovedRows:  // as many as its transfer says
      return 0;
    case kHeadSend:
    case kHeadReceive:
      return extent.is(SequenceEngine::kHeads) ? rows * extent.qkv_width() : 0;
    case kHeadOutSend:
    case kHeadOutReceive:
    case kHeadAttention:
      return extent.is(SequenceEngine::kHeads) ? rows * extent.attention_width() : 0;
    case kHeadDeltaSend:
    case kHeadDeltaReceive:
      return extent.is(SequenceEngine::kHeads) ? rows * extent.heads : 0;
    case kGatheredKeys:
    case kOrderedKeys:
    case kGatheredKeyGradient:
      return extent.gathered_rows() * 2 * extent.kv_width();
    case kAttentionNormGradient:
    case kMlpNormGradient:
      return extent.style.norm_before ? 2 * extent.width : 0;
    default:
      return rows * extent.width;
  }
}

/// Whether something may have to come from other ranks, or be summed over them, behind a segment
/// and before the next one of the phase.
bool exchanges_behind(Segment segment, Phase phase) {
  if (segment == Segment::kAttention && phase != Phase::kBackwardWeight) return true;
  if (phase == Phase::kForward && segment == Segment::kQkvAdd) return true;
  if (phase == Phase::kBackwardInput && segment == Segment::kOutput) return true;
  return std::ranges::any_of(segment_uses(segment, phase), [](const ValueUse& use) {
    return use.access != kRead && (partial_over_x(use.value) || partial_over_y(use.value));
  });
}

double attention_flops(const BlockExtent& extent, int64_t tokens, const ModelShape& model) {
  return 2.0 * static_cast<double>(extent.rows * extent.attention_width()) *
         attended_tokens(tokens, model);
}

double linear_flops(Segment segment, const BlockExtent& extent) {
  const int64_t width = 2 * extent.rows * extent.width;
  if (segment == Segment::kQkv) return static_cast<double>(width * extent.qkv_width());
  if (segment == Segment::kOutput) return static_cast<double>(width * extent.attention_width());
  if (segment == Segment::kUp) return static_cast<double>(width * extent.up_width());
  if (segment == Segment::kDown) return static_cast<double>(width * extent.ffn_width);
  return 0.0;
}

}  // namespace

ValueSet value_set(std::initializer_list<BlockValue> values) {
  ValueSet set;
  for (const BlockValue value : values) insert(set, value);
  return set;
}

bool partial_over_x(BlockValue value) {
  return value == kOutputSum || value == kDownSum || value == kNormedAttentionGradient ||
         value == kNormedMlpGradient || value == kQueryKeyNormGradient;
}

bool partial_over_y(BlockValue value) {
  return is_exact(value) || value == kQkvSum || value == kUpSum || value == kActivatedGradient ||
         value == kAttentionGradient;
}

bool is_exchanged_by_rows(BlockValue value) {
  static const ValueSet exchanged =
      value_set({kNormedAttention, kOutputSum, kNormedMlp, kDownSum, kDownSumGradient,
                 kNormedMlpGradient, kOutputSumGradient, kNormedAttentionGradient});
  return holds(exchanged, value);
}

bool is_norm_gradient(BlockValue value) {
  return value == kAttentionNormGradient || value == kMlpNormGradient ||
         value == kAttentionBranchGradient || value == kMlpBranchGradient;
}

int64_t value_elements(BlockValue value, const BlockExtent& extent) {
  const int64_t taken = is_exact(value) ? extent.exact : is_wide(value) ? extent.wide : 1;
  return count_of(value, extent) * taken;
}

Dtype value_dtype(BlockValue value, Dtype dtype) {
  if (is_exact(value)) return Dtype::kFloat64;
  return is_wide(value) && wide_elements(dtype) > 1 ? Dtype::kFloat32 : dtype;
}

bool reads_weights(Segment segment, Phase phase) {
  if (phase == Phase::kBackwardWeight || segment == Segment::kAttention) return false;
  return true;
}

RangeUses range_uses(SegmentRange range, Phase phase, bool keeps, bool splits_rows) {
  RangeUses uses;
  ValueSet written;
  for (const Segment segment : in_order(range, phase)) {
    for (const ValueUse& use : segment_uses(segment, phase, splits_rows)) {
      if (use.access != kWrite && !holds(written, use.value)) insert(uses.reads, use.value);
      if (use.access != kRead) insert(written, use.value);
    }
  }
  written &= ~joined_sums(range, phase, {});
  uses.writes = written & leaving(range, phase, keeps, splits_rows);
  uses.inside = written & ~uses.writes;
  return uses;
}

SegmentRange segments_of_pieces(int begin, int end) {
  static constexpr std::array<Segment, 4> kFirst = {Segment::kAttentionMoments, Segment::kAttention,
                                                    Segment::kMlpMoments, Segment::kDown};
  const auto first = [](int piece) {
    return piece < 4 ? static_cast<int>(kFirst[static_cast<size_t>(piece)]) : kNumSegments;
  };
  return {first(begin), first(end)};
}

std::vector<SegmentRange> cut_at_exchanges(SegmentRange range, Phase phase, bool splits_rows) {
  std::vector<SegmentRange> pieces;
  SegmentRange piece = range;
  const bool forward = phase == Phase::kForward;
  const std::vector<Segment> order = in_order(range, phase);
  for (size_t at = 0; at + 1 < order.size(); ++at) {
    const bool changes_rows = splits_rows && phase != Phase::kBackwardWeight &&
                              is_between_products(order[at]) != is_between_products(order[at + 1]);
    if (!changes_rows && !exchanges_behind(order[at], phase)) continue;
    const int index = static_cast<int>(order[at]);
    pieces.push_back(forward ? SegmentRange{piece.begin, index + 1}
                             : SegmentRange{index, piece.end});
    (forward ? piece.begin : piece.end) = forward ? index + 1 : index;
  }
  if (piece.begin < piece.end) pieces.push_back(piece);
  return pieces;
}

ValueSet kept_values() {
  static const ValueSet kept =
      value_set({kAttentionMean, kAttentionRstd, kRawQueryKey, kQueryKeyRstd, kQkv, kLogSumExp,
                 kAttention, kAttentionBranch, kAttentionBranchRstd, kMiddle, kMlpMean, kMlpRstd,
                 kUp, kMlpBranch, kMlpBranchRstd});
  return kept;
}

ValueSet bundle_values() {
  static const ValueSet bundle =
      value_set({kNormedAttention, kQkvGradient, kKeptAttention, kOutputSumGradient, kNormedMlp,
                 kUpGradient, kActivated, kDownSumGradient, kAttentionNormGradient,
                 kMlpNormGradient, kAttentionBranchGradient, kMlpBranchGradient});
  return bundle;
}

ValueOffsets saved_offsets(const BlockExtent& extent) {
  const SavedLayout layout = saved_layout(extent);
  ValueOffsets offsets;
  offsets[kAttentionMean] = layout.attention_mean;
  offsets[kAttentionRstd] = layout.attention_rstd;
  offsets[kMlpMean] = layout.mlp_mean;
  offsets[kMlpRstd] = layout.mlp_rstd;
  offsets[kQueryKeyRstd] = layout.query_key_rstd;
  offsets[kAttentionBranchRstd] = layout.attention_branch_rstd;
  offsets[kMlpBranchRstd] = layout.mlp_branch_rstd;
  offsets[kLogSumExp] = layout.log_sum_exp;
  offsets[kQkv] = layout.qkv;
  offsets[kAttention] = layout.attention;
  offsets[kMiddle] = layout.middle;
  offsets[kUp] = extent.keeps_up_apart() ? -1 : layout.up;
  offsets[kRawQueryKey] = layout.raw_query_key;
  offsets[kAttentionBranch] = layout.attention_branch;
  offsets[kMlpBranch] = layout.mlp_branch;
  offsets.elements = layout.elements;
  drop_empty(offsets, extent);
  return offsets;
}

ValueSet deferred_values() {
  static const ValueSet deferred =
      value_set({kNormedAttention, kQkvGradient, kNormedMlp, kUpGradient, kAttentionNormGradient,
                 kMlpNormGradient});
  return deferred;
}

ValueOffsets bundle_offsets(const BlockExtent& extent) {
  const BundleLayout layout = bundle_layout(extent);
  const int64_t branches = layout.branch_gradients - layout.deferred_elements;
  ValueOffsets offsets;
  offsets[kKeptAttention] = layout.attention - layout.deferred_elements;
  offsets[kOutputSumGradient] = layout.output_gradient - layout.deferred_elements;
  offsets[kActivated] = layout.activated - layout.deferred_elements;
  offsets[kDownSumGradient] = layout.down_gradient - layout.deferred_elements;
  offsets[kAttentionBranchGradient] = branches;
  offsets[kMlpBranchGradient] = branches + extent.wide * extent.width;
  offsets.elements = layout.elements - layout.deferred_elements;
  drop_empty(offsets, extent);
  return offsets;
}

ValueOffsets deferred_offsets(const BlockExtent& extent) {
  const BundleLayout layout = bundle_layout(extent);
  ValueOffsets offsets;
  offsets[kNormedAttention] = layout.normed_attention;
  offsets[kQkvGradient] = layout.qkv_gradient;
  offsets[kNormedMlp] = layout.normed_mlp;
  offsets[kUpGradient] = layout.up_gradient;
  offsets[kAttentionNormGradient] = layout.norm_gradients;
  offsets[kMlpNormGradient] = layout.norm_gradients + 2 * extent.wide * extent.width;
  offsets.elements = layout.deferred_elements;
  drop_empty(offsets, extent);
  return offsets;
}

ValueOffsets workspace_offsets(const BlockExtent& extent, SegmentRange range, Phase phase,
                               const ValueSet& given) {
  const ValueSet never =
      value_set({kAttentionNormGradient, kMlpNormGradient, kAttentionBranchGradient,
                 kMlpBranchGradient, kQueryKeyNormGradient, kKeptAttention}) |
      joined_sums(range, phase, given);
  const std::array<Life, kNumBlockValues> life = lives(range, phase, given, extent.row_split > 1);
  ValueOffsets offsets;
  std::vector<Placed> placed;
  for (size_t value = 0; value < life.size(); ++value) {
    const int64_t elements =
        aligned(value_elements(static_cast<BlockValue>(value), extent), extent);
    if (!life[value].used() || given.test(value) || never.test(value) || elements == 0) continue;
    const Placed at = place(placed, elements, life[value]);
    offsets.at[value] = at.begin;
    offsets.elements = std::max(offsets.elements, at.end);
  }
  return offsets;
}

SegmentSizes segment_sizes(const ModelShape& model, SegmentRange range, int64_t batch,
                           int64_t tokens, Dtype dtype) {
  const BlockExtent extent = block_extent(model, batch, tokens, dtype);
  SegmentSizes sizes;
  for (const Segment segment : in_order(range, Phase::kForward)) {
    const double linear = linear_flops(segment, extent);
    const bool attends = segment == Segment::kAttention;
    const double attention = attends ? attention_flops(extent, tokens, model) : 0.0;
    sizes.forward_flops += linear + attention;
    sizes.attention_flops += attention;
    sizes.backward_input_flops += linear + 2.0 * attention;
    sizes.backward_weight_flops += linear;
    for (const ValueUse& use : segment_uses(segment, Phase::kForward))
      if (use.access == kWrite && saved_offsets(extent)[use.value] >= 0)
        sizes.saved_bytes +=
            aligned(value_elements(use.value, extent), extent) * dtype_bytes(dtype);
  }
  return sizes;
}

}  // namespace strait
