// The segments of a transformer block. A segment ends wherever a collective may stand. Here are the
// values that pass between segments, and what each segment reads and writes in each phase.
// SegmentedBlock in model/block.h executes them.
//
//   segment            forward                           what ranks must sum behind it
//   attention_moments  input -> attention_moments        forward: attention_moments (y)
//   attention_norm     input -> normed_attention         backward: attention_gradient_moments (y)
//   qkv                normed_attention -> qkv_sum       forward: qkv_sum (y)
//                                                        backward: normed_attention_gradient (x)
//   qkv_add            qkv_sum -> qkv
//   attention          qkv -> attention, log_sum_exp     forward: keys of others come before or
//                                                        during it; backward: and their gradients
//                                                        are summed behind it
//   output             attention -> output_sum           forward: output_sum (x)
//                                                        backward: attention_gradient (y)
//   attention_branch   output_sum -> attention_branch    forward: attention_branch_moments (y)
//   attention_add      output_sum, input -> middle       backward: ..._branch_gradient_moments (y)
//   mlp_moments        middle -> mlp_moments             forward: mlp_moments (y)
//   mlp_norm           middle -> normed_mlp              backward: mlp_gradient_moments (y)
//   up                 normed_mlp -> up_sum              forward: up_sum (y)
//                                                        backward: normed_mlp_gradient (x)
//   up_add             up_sum -> up
//   down               up -> down_sum                    forward: down_sum (x)
//                                                        backward: activated_gradient (y)
//   mlp_branch         down_sum -> mlp_branch            forward: mlp_branch_moments (y)
//   mlp_add            down_sum, middle -> output        backward: mlp_branch_gradient_moments (y)
//
// Ranks of x have their heads and channels, ranks of y their columns of the residual stream
// (Singh et al. 2023, AxoNN's three-dimensional scheme: qkv and up are its normal layers, output
// and down the transposed ones). A product whose depth is cut makes a part of its sum on every rank
// of that axis: what one layer leaves is what the next one takes, so nothing is redistributed. The
// norms of rows that y cuts sum what they need of each row: its moments. With one rank along y the
// moments have no elements and their segments do nothing.
//
// Without norms before the branches (OLMo 2) the two norm segments copy. Norms behind them are part
// of the branch and add segments, which keep the sums as `branch`. Norms of queries and keys are
// part of qkv_add.
//
// Ranks of the axis sequence have some tokens of every sequence. Their queries attend to the keys
// and values of all of them, which are gathered before attention, or come by in rounds that take
// the segment's place; in the backward again, where every rank makes a part of their gradients.
// docs/mesh.md.
//
// A partial sum leaves its segment raw. The segment behind it brings in the bias of the product,
// and dropout and the residual stream, so that each enters once. The backward of a segment is its
// adjoint: qkv and up read the same input on every rank of x, so the gradient of that input is a
// sum over x; output and down read the same input on every rank of y.
//
// No gradient of a parameter is partial. That of a cut parameter is complete for its part. That of
// a shared one (norms and the biases of the adds over x, the biases of qkv and up over y) is made
// from summed values, so all ranks compute the same bits. The exception is the norm of each head's
// queries and keys: every rank of x has its heads' part of the gradient, which is summed over x
// like the values above.
//
// Where rows are split (ModelShape::splits_rows; Korthikanti et al. 2022), ranks of x, which else
// all do the same between the products, do so for some consecutive rows of a micro-batch each: the
// moments, norm, branch and add segments. Sums over x become reduce-scatters, and the next product
// is preceded by an all-gather:
//
//   forward    gathered: normed_attention, normed_mlp; scattered: output_sum, down_sum
//   backward   gathered: down_sum_gradient, output_sum_gradient, and once more normed_attention and
//              normed_mlp, of which nothing but the input and the statistics is kept;
//              scattered: normed_mlp_gradient, normed_attention_gradient
//
// What is replicated over x, and so has a rank's rows only, are the residual stream and its
// gradient, moments and statistics of norms, and branches. What products make and read is not: qkv,
// attention and up are split over x by columns, and replicated over y. So rows are split over x
// alone, whatever y is; sums of moments over y have a rank's rows. Gradients of norms become sums
// over x. Biases of output and down get theirs from gathered rows, as before.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "strait/shape/block_layout.h"

namespace strait {

/// In forward order.
enum class Segment : uint8_t {
  kAttentionMoments,
  kAttentionNorm,
  kQkv,
  kQkvAdd,
  kAttention,
  kOutput,
  kAttentionBranch,
  kAttentionAdd,
  kMlpMoments,
  kMlpNorm,
  kUp,
  kUpAdd,
  kDown,
  kMlpBranch,
  kMlpAdd
};
inline constexpr int kNumSegments = 15;
const char* segment_name(Segment segment);

/// Neighbouring segments, done by one call: [begin, end). A backward does the last one first.
struct SegmentRange {
  int begin = 0, end = kNumSegments;
  bool holds(Segment segment) const {
    return begin <= static_cast<int>(segment) && static_cast<int>(segment) < end;
  }
};

/// Whether a segment works row by row on the residual stream, between the products.
bool is_between_products(Segment segment);

/// The segments that the fused pieces [begin, end) of a transformer block join
/// (BlockShape::segments).
SegmentRange segments_of_pieces(int begin, int end);

enum class Phase : uint8_t { kForward, kBackwardInput, kBackwardWeight };

/// What passes between segments and phases, besides the unit's weights and gradient. Gradients
/// have the shape of what they are the gradient of.
enum class BlockValue : uint8_t {
  kInput,             // [rows, width]
  kAttentionMoments,  // [rows, norm_moments] fp64: sums of the rows' elements, of their squares
  kAttentionMean,     // [rows] wide; nothing for RMSNorm
  kAttentionRstd,     // [rows] wide; nothing without a norm before
  kNormedAttention,   // [rows, width]; not kept: the backward makes it again
  kQkvSum,            // [rows, qkv_width] wide: x W^T of this rank's columns, no bias
  kRawQueryKey,       // [rows, query_key_width] before their norms; nothing without
  kQueryKeyRstd,      // [rows, query_key_norms] wide
  kQkv,               // [rows, qkv_width], queries and keys after RoPE
  kLogSumExp,         // [batch, heads, tokens] wide
  kAttention,         // [rows, attention_width]
  kOutputSum,         // [rows, width] wide: x W^T of this rank's columns, no bias
  kAttentionBranch,   // [rows, width] before the norm behind it; nothing without
  kAttentionBranchMoments,  // [rows, branch_moments] fp64: sums of squares
  kAttentionBranchRstd,     // [rows] wide; likewise
  kMiddle,                  // [rows, width] residual stream after attention
  kMlpMoments,              // as kAttentionMoments
  kMlpMean,                 // [rows] wide; nothing for RMSNorm
  kMlpRstd,                 // [rows] wide
  kNormedMlp,               // [rows, width]; as kNormedAttention
  kUpSum,                   // [rows, up_width] wide: as kQkvSum
  kUp,                      // [rows, up_width]
  kActivated,               // [rows, ffn_width] input of down; as kNormedAttention
  kDownSum,                 // [rows, width] wide; as kOutputSum
  kMlpBranch,               // as kAttentionBranch
  kMlpBranchMoments,        // as kAttentionBranchMoments
  kMlpBranchRstd,
  kOutput,  // [rows, width]
  kOutputGradient,
  kMlpBranchGradientMoments,  // [rows, branch_moments] fp64: sums of gradient * weight * normed
  kMlpBranchGradient,         // [width] wide: of the weight of the norm behind; nothing without
  kDownSumGradient,           // after dropout, not wide; kOutputGradient itself where nothing drops
  kActivatedGradient,         // [rows, ffn_width]: this rank's part of a sum over y, not wide
  kUpGradient,
  kNormedMlpGradient,   // this rank's part of a sum over x, not wide
  kMlpGradientMoments,  // [rows, norm_moments] fp64: sums of gradient * weight (not for RMSNorm),
                        // and of that times what is normed
  kMlpNormGradient,     // [2, width] wide: of the norm's weight and bias
  kMiddleGradient,
  kAttentionBranchGradientMoments,  // as kMlpBranchGradientMoments
  kAttentionBranchGradient,         // as kMlpBranchGradient
  kOutputSumGradient,  // after dropout, not wide; kMiddleGradient itself where nothing drops
  kKeptAttention,      // kAttention, or a copy of it that outlives what the forward kept
  kAttentionGradient,  // this rank's part of a sum over y, not wide
  kDelta,              // [batch, heads, tokens] wide: scratch of attention's backward
  kQuerySum,  // [batch, heads, tokens, head_width] wide: scratch likewise; nothing unless bf16
  kQkvGradient,
  kQueryKeyNormGradient,      // [query_key_weights] wide: queries, keys; a part of a sum over x
  kNormedAttentionGradient,   // as kNormedMlpGradient
  kAttentionGradientMoments,  // as kMlpGradientMoments
  kAttentionNormGradient,     // as kMlpNormGradient
  kInputGradient,
  // With one rank along sequence these have no elements.
  kKeys,                 // [rows, 2 kv_width] keys and values of this rank's tokens, packed
  kGatheredKeys,         // [ranks, rows, 2 kv_width] those of all ranks
  kOrderedKeys,          // [batch, tokens of all ranks, 2 kv_width] the same in order of position
  kGatheredKeyGradient,  // [ranks, rows, 2 kv_width] wide: this rank's part of a sum over sequence
  kKeyGradient,          // [rows, 2 kv_width] wide
  kAttentionSum,         // [rows, attention_width] wide: of the rounds of a ring, until the last
                         // one; nothing unless bf16
  // Where ranks of sequence exchange heads: [ranks, rows, columns / ranks], by rank.
  kHeadSend,        // columns of queries, keys and values, or their gradients
  kHeadReceive,     // likewise
  kHeadOutSend,     // columns of attention, or its gradient
  kHeadOutReceive,  // likewise
  kHeadDeltaSend,   // [ranks, heads / ranks, rows] wide: kDelta of this rank's tokens, by rank
  kHeadDeltaReceive,
  kHeadAttention,  // [batch, tokens of all ranks, columns of attention of this rank's heads]
  kMovedRows       // some rows of kQkv, kAttention, the residual stream or their gradients, on
                   // their way to a rank
};
inline constexpr int kNumBlockValues = 65;
constexpr size_t value_index(BlockValue value) { return static_cast<size_t>(value); }
using ValueSet = std::bitset<kNumBlockValues>;
ValueSet value_set(std::initializer_list<BlockValue> values);

const char* value_name(BlockValue value);

/// What takes the place of segment attention where ranks of sequence exchange heads (Jacobs et al.
/// 2023, DeepSpeed-Ulysses): all-to-alls stand between these steps. Where only neighbours do so and
/// keys travel on rings across them (Fang & Zhao 2024, USP; Gu et al. 2024, LoongTrain), rounds of
/// a ring take the place of kAttend and kAttendInput, between the last four.
enum class HeadStep : uint8_t {
  kSend,             // qkv -> head_send
  kAttend,           // head_receive -> qkv of this rank's heads and all tokens, in place of its
                     // tokens' qkv; log_sum_exp, head_attention, head_out_send
  kReceive,          // head_out_receive -> attention
  kSendGradient,     // attention, attention_gradient -> head_out_send, head_delta_send
  kAttendInput,      // head_out_receive, head_delta_receive -> head_send
  kReceiveGradient,  // head_receive -> qkv_gradient
  // Of this rank's heads and the tokens of all ranks with which it exchanges them:
  kOrder,          // head_receive -> qkv, in place of that of its tokens
  kSplit,          // head_attention -> head_out_send
  kOrderGradient,  // head_out_receive, head_delta_receive -> delta and attention_gradient, in place
                   // of that of its tokens
  kSplitGradient,  // qkv_gradient of queries, key_gradient -> head_send
};
inline constexpr int kNumHeadSteps = 10;
const char* head_step_name(HeadStep step);

/// What stands around attention where a plan moves rows between attention and linear modules
/// (Zeppelin's remapping layer): packed, sent, and placed where the other rank has them. Either the
/// first eight, or where the residual stream is moved, and with it all segments up to
/// attention_add, the last eight.
enum class RemapStep : uint8_t {
  kPackQkv,  // qkv -> moved_rows
  kPlaceQkv,
  kPackAttention,
  kPlaceAttention,
  kPackAttentionGradient,
  kPlaceAttentionGradient,
  kPackQkvGradient,   // of queries from qkv_gradient, of keys and values from key_gradient
  kPlaceQkvGradient,  // to these
  kPackInput,         // input -> moved_rows
  kPlaceInput,
  kPackMiddle,
  kPlaceMiddle,
  kPackMiddleGradient,  // and leaves zeros: a rank that attends to nothing has one row of them
  kPlaceMiddleGradient,
  kPackInputGradient,
  kPlaceInputGradient
};
inline constexpr int kNumRemapSteps = 16;
const char* remap_step_name(RemapStep step);

/// Rows [begin, end).
struct RowRange {
  int64_t begin = 0, end = 0;
};

/// Whether a rank of x, or of y, makes a part of a sum only. The next segment needs the sum over
/// the axis, taken in rank order. No value is partial over both.
bool partial_over_x(BlockValue value);
bool partial_over_y(BlockValue value);
/// Type of its numbers: fp64 for moments, fp32 for the values marked wide beside bf16, else
/// `dtype`.
Dtype value_dtype(BlockValue value, Dtype dtype);
/// Size counted in elements of the activations: a wide number beside bf16 takes two.
int64_t value_elements(BlockValue value, const BlockExtent& extent);

enum class Access : uint8_t { kRead, kWrite, kUpdate };
struct ValueUse {
  BlockValue value;
  Access access;
};
/// What one segment uses in one phase. The gradient of the unit is another matter:
/// backward_weight adds to it or overwrites it.
const std::vector<ValueUse>& segment_uses(Segment segment, Phase phase, bool splits_rows = false);
/// Attention has no parameters. No backward_weight reads weights.
bool reads_weights(Segment segment, Phase phase);

/// What a range uses in one phase. A product and what stands behind its sum are joined where the
/// range holds both and the sum is not asked for: in a forward qkv with qkv_add, output with
/// attention_add, up with up_add, down with mlp_add; in a backward down with up_add.
struct RangeUses {
  ValueSet reads;   // needed from outside
  ValueSet writes;  // made here and used by other segments, a later phase or the next block
  ValueSet inside;  // made and used here alone
};
/// keeps = false: a forward without a backward, whose kept values are used here alone as well.
RangeUses range_uses(SegmentRange range, Phase phase, bool keeps = true, bool splits_rows = false);

/// A range, cut behind every sum over x or y that the phase needs, and before and behind attention,
/// where ranks of sequence exchange keys; in the order in which the phase does the pieces. Where
/// rows are split also between segments that work on some and on all of them.
std::vector<SegmentRange> cut_at_exchanges(SegmentRange range, Phase phase,
                                           bool splits_rows = false);

/// What ranks of x exchange where rows are split: values of all rows, which are gathered from or
/// scattered into values of the same name that have a rank's rows.
bool is_exchanged_by_rows(BlockValue value);
/// The gradients of norms, which a rank then makes from its rows: its part of a sum over x.
bool is_norm_gradient(BlockValue value);

/// What a forward keeps for the backward beside the input: the parts of SavedLayout.
ValueSet kept_values();
/// What backward_input hands to backward_weight: the parts of BundleLayout, but for the gradients
/// of the norms of queries and keys, which ranks of x may have to sum first. Of them
/// deferred_values are those of qkv, up and the norms before them, each as large as a value that
/// the forward has kept: the backward of these weights may wait without taking more memory.
ValueSet bundle_values();
ValueSet deferred_values();

/// Where values lie in one buffer; offsets count elements of the activations, -1: not in it.
struct ValueOffsets {
  std::array<int64_t, kNumBlockValues> at;
  int64_t elements = 0;
  ValueOffsets() { at.fill(-1); }
  int64_t& operator[](BlockValue value) { return at[value_index(value)]; }
  int64_t operator[](BlockValue value) const { return at[value_index(value)]; }
};
/// The kept values in one bundle, as the fused block has them, and those of the split backward in
/// two: all others, and the deferred ones.
ValueOffsets saved_offsets(const BlockExtent& extent);
ValueOffsets bundle_offsets(const BlockExtent& extent);
ValueOffsets deferred_offsets(const BlockExtent& extent);

/// The workspace of a call: the range's values that are not `given`. Values share memory unless
/// they are alive at the same time. The gradients of norms and kKeptAttention are never in the
/// workspace; SegmentCall says what a call does without them.
ValueOffsets workspace_offsets(const BlockExtent& extent, SegmentRange range, Phase phase,
                               const ValueSet& given);

/// Costs of a range on one rank of x and y, for one micro-batch.
struct SegmentSizes {
  double forward_flops = 0, backward_input_flops = 0, backward_weight_flops = 0;
  double attention_flops = 0;  // of the forward; backward_input has twice as many
  int64_t saved_bytes = 0;     // kept values that the range makes, as parts of the saved bundle
};
/// Over the segments of a block they add up to block_sizes. `tokens` are those that
/// this rank has of a sequence.
SegmentSizes segment_sizes(const ModelShape& model, SegmentRange range, int64_t batch,
                           int64_t tokens, Dtype dtype);

}  // namespace strait
