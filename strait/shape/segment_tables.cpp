// Names of segments and values, and what each segment uses in each phase.
#include "strait/shape/segment.h"

namespace strait {
namespace {

using enum BlockValue;
using enum Access;
using Uses = std::vector<ValueUse>;

constexpr std::array<const char*, kNumSegments> kSegmentNames = {"attention_moments",
                                                                 "attention_norm",
                                                                 "qkv",
                                                                 "qkv_add",
                                                                 "attention",
                                                                 "output",
                                                                 "attention_branch",
                                                                 "attention_add",
                                                                 "mlp_moments",
                                                                 "mlp_norm",
                                                                 "up",
                                                                 "up_add",
                                                                 "down",
                                                                 "mlp_branch",
                                                                 "mlp_add"};

constexpr std::array<const char*, kNumBlockValues> kValueNames = {
    "input",
    "attention_moments",
    "attention_mean",
    "attention_rstd",
    "normed_attention",
    "qkv_sum",
    "raw_query_key",
    "query_key_rstd",
    "qkv",
    "log_sum_exp",
    "attention",
    "output_sum",
    "attention_branch",
    "attention_branch_moments",
    "attention_branch_rstd",
    "middle",
    "mlp_moments",
    "mlp_mean",
    "mlp_rstd",
    "normed_mlp",
    "up_sum",
    "up",
    "activated",
    "down_sum",
    "mlp_branch",
    "mlp_branch_moments",
    "mlp_branch_rstd",
    "output",
    "output_gradient",
    "mlp_branch_gradient_moments",
    "mlp_branch_gradient",
    "down_sum_gradient",
    "activated_gradient",
    "up_gradient",
    "normed_mlp_gradient",
    "mlp_gradient_moments",
    "mlp_norm_gradient",
    "middle_gradient",
    "attention_branch_gradient_moments",
    "attention_branch_gradient",
    "output_sum_gradient",
    "kept_attention",
    "attention_gradient",
    "delta",
    "query_sum",
    "qkv_gradient",
    "query_key_norm_gradient",
    "normed_attention_gradient",
    "attention_gradient_moments",
    "attention_norm_gradient",
    "input_gradient",
    "keys",
    "gathered_keys",
    "ordered_keys",
    "gathered_key_gradient",
    "key_gradient",
    "attention_sum",
    "head_send",
    "head_receive",
    "head_out_send",
    "head_out_receive",
    "head_delta_send",
    "head_delta_receive",
    "head_attention",
    "moved_rows"};

const std::array<Uses, kNumSegments>& forward_uses() {
  static const std::array<Uses, kNumSegments> uses = {
      Uses{{kInput, kRead}, {kAttentionMoments, kWrite}},
      Uses{{kInput, kRead},
           {kAttentionMoments, kRead},
           {kAttentionMean, kWrite},
           {kAttentionRstd, kWrite},
           {kNormedAttention, kWrite}},
      Uses{{kNormedAttention, kRead}, {kQkvSum, kWrite}},
      Uses{{kQkvSum, kRead}, {kRawQueryKey, kWrite}, {kQueryKeyRstd, kWrite}, {kQkv, kWrite}},
      Uses{{kQkv, kRead},
           {kGatheredKeys, kRead},
           {kOrderedKeys, kWrite},
           {kLogSumExp, kWrite},
           {kAttention, kWrite}},
      Uses{{kAttention, kRead}, {kOutputSum, kWrite}},
      Uses{{kOutputSum, kRead}, {kAttentionBranch, kWrite}, {kAttentionBranchMoments, kWrite}},
      Uses{{kOutputSum, kRead},
           {kAttentionBranch, kRead},
           {kAttentionBranchMoments, kRead},
           {kInput, kRead},
           {kAttentionBranchRstd, kWrite},
           {kMiddle, kWrite}},
      Uses{{kMiddle, kRead}, {kMlpMoments, kWrite}},
      Uses{{kMiddle, kRead},
           {kMlpMoments, kRead},
           {kMlpMean, kWrite},
           {kMlpRstd, kWrite},
           {kNormedMlp, kWrite}},
      Uses{{kNormedMlp, kRead}, {kUpSum, kWrite}},
      Uses{{kUpSum, kRead}, {kUp, kWrite}},
      Uses{{kUp, kRead}, {kActivated, kWrite}, {kDownSum, kWrite}},
      Uses{{kDownSum, kRead}, {kMlpBranch, kWrite}, {kMlpBranchMoments, kWrite}},
      Uses{{kDownSum, kRead},
           {kMlpBranch, kRead},
           {kMlpBranchMoments, kRead},
           {kMiddle, kRead},
           {kMlpBranchRstd, kWrite},
           {kOutput, kWrite}}};
  return uses;
}

const std::array<Uses, kNumSegments>& backward_input_uses() {
  static const std::array<Uses, kNumSegments> uses = {
      Uses{{kNormedAttentionGradient, kRead},
           {kAttentionGradientMoments, kRead},
           {kInput, kRead},
           {kAttentionMean, kRead},
           {kAttentionRstd, kRead},
           {kMiddleGradient, kRead},
           {kInputGradient, kWrite},
           {kAttentionNormGradient, kWrite}},
      Uses{{kNormedAttentionGradient, kRead},
           {kInput, kRead},
           {kAttentionMean, kRead},
           {kAttentionRstd, kRead},
           {kAttentionGradientMoments, kWrite}},
      Uses{{kQkvGradient, kRead},
           {kInput, kRead},
           {kAttentionMean, kRead},
           {kAttentionRstd, kRead},
           {kNormedAttentionGradient, kWrite},
           {kNormedAttention, kWrite}},
      Uses{{kQkvGradient, kUpdate},
           {kKeyGradient, kRead},
           {kRawQueryKey, kRead},
           {kQueryKeyRstd, kRead},
           {kQueryKeyNormGradient, kWrite}},
      Uses{{kAttentionGradient, kRead},
           {kQkv, kRead},
           {kGatheredKeys, kRead},
           {kAttention, kRead},
           {kLogSumExp, kRead},
           {kDelta, kWrite},
           {kGatheredKeyGradient, kWrite},
           {kQuerySum, kWrite},
           {kQkvGradient, kWrite}},
      Uses{{kOutputSumGradient, kRead},
           {kAttention, kRead},
           {kAttentionGradient, kWrite},
           {kKeptAttention, kWrite}},
      Uses{{kMiddleGradient, kRead},
           {kAttentionBranch, kRead},
           {kAttentionBranchRstd, kRead},
           {kAttentionBranchGradientMoments, kRead},
           {kOutputSumGradient, kWrite},
           {kAttentionBranchGradient, kWrite}},
      Uses{{kMiddleGradient, kRead},
           {kAttentionBranch, kRead},
           {kAttentionBranchRstd, kRead},
           {kAttentionBranchGradientMoments, kWrite}},
      Uses{{kNormedMlpGradient, kRead},
           {kMlpGradientMoments, kRead},
           {kMiddle, kRead},
           {kMlpMean, kRead},
           {kMlpRstd, kRead},
           {kOutputGradient, kRead},
           {kMiddleGradient, kWrite},
           {kMlpNormGradient, kWrite}},
      Uses{{kNormedMlpGradient, kRead},
           {kMiddle, kRead},
           {kMlpMean, kRead},
           {kMlpRstd, kRead},
           {kMlpGradientMoments, kWrite}},
      Uses{{kUpGradient, kRead},
           {kMiddle, kRead},
           {kMlpMean, kRead},
           {kMlpRstd, kRead},
           {kNormedMlpGradient, kWrite},
           {kNormedMlp, kWrite}},
      Uses{{kActivatedGradient, kRead}, {kUp, kRead}, {kActivated, kWrite}, {kUpGradient, kWrite}},
      Uses{{kDownSumGradient, kRead}, {kActivatedGradient, kWrite}},
      Uses{{kOutputGradient, kRead},
           {kMlpBranch, kRead},
           {kMlpBranchRstd, kRead},
           {kMlpBranchGradientMoments, kRead},
           {kDownSumGradient, kWrite},
           {kMlpBranchGradient, kWrite}},
      Uses{{kOutputGradient, kRead},
           {kMlpBranch, kRead},
           {kMlpBranchRstd, kRead},
           {kMlpBranchGradientMoments, kWrite}}};
  return uses;
}

const std::array<Uses, kNumSegments>& backward_weight_uses() {
  static const std::array<Uses, kNumSegments> uses = {
      Uses{{kAttentionNormGradient, kRead}},
      Uses{},
      Uses{{kQkvGradient, kRead}, {kNormedAttention, kRead}},
      Uses{{kQueryKeyNormGradient, kRead}},
      Uses{},
      Uses{{kOutputSumGradient, kRead}, {kKeptAttention, kRead}},
      Uses{{kOutputSumGradient, kRead}, {kAttentionBranchGradient, kRead}},
      Uses{},
      Uses{{kMlpNormGradient, kRead}},
      Uses{},
      Uses{{kUpGradient, kRead}, {kNormedMlp, kRead}},
      Uses{},
      Uses{{kDownSumGradient, kRead}, {kActivated, kRead}},
      Uses{{kDownSumGradient, kRead}, {kMlpBranchGradient, kRead}},
      Uses{}};
  return uses;
}

}  // namespace

const char* segment_name(Segment segment) { return kSegmentNames[static_cast<size_t>(segment)]; }
const char* head_step_name(HeadStep step) {
  static constexpr std::array<const char*, kNumHeadSteps> kNames = {
      "send_heads",           "attend_heads",           "receive_heads", "send_head_gradients",
      "attend_heads_input",   "receive_head_gradients", "order_heads",   "split_heads",
      "order_head_gradients", "split_head_gradients"};
  return kNames[static_cast<size_t>(step)];
}
const char* remap_step_name(RemapStep step) {
  static constexpr std::array<const char*, kNumRemapSteps> kNames = {
      "pack_qkv_rows",
      "place_qkv_rows",
      "pack_attention_rows",
      "place_attention_rows",
      "pack_attention_gradient_rows",
      "place_attention_gradient_rows",
      "pack_qkv_gradient_rows",
      "place_qkv_gradient_rows",
      "pack_input_rows",
      "place_input_rows",
      "pack_middle_rows",
      "place_middle_rows",
      "pack_middle_gradient_rows",
      "place_middle_gradient_rows",
      "pack_input_gradient_rows",
      "place_input_gradient_rows"};
  return kNames[static_cast<size_t>(step)];
}
const char* value_name(BlockValue value) { return kValueNames[static_cast<size_t>(value)]; }

bool is_between_products(Segment segment) {
  switch (segment) {
    case Segment::kQkv:
    case Segment::kQkvAdd:
    case Segment::kAttention:
    case Segment::kOutput:
    case Segment::kUp:
    case Segment::kUpAdd:
    case Segment::kDown:
      return false;
    default:
      return true;
  }
}

const std::vector<ValueUse>& segment_uses(Segment segment, Phase phase, bool splits_rows) {
  // What these have normed is then made by a step before (SegmentedBlock::normalize_again).
  static const Uses qkv_input = {{kQkvGradient, kRead}, {kNormedAttentionGradient, kWrite}};
  static const Uses up_input = {{kUpGradient, kRead}, {kNormedMlpGradient, kWrite}};
  if (splits_rows && phase == Phase::kBackwardInput) {
    if (segment == Segment::kQkv) return qkv_input;
    if (segment == Segment::kUp) return up_input;
  }
  const auto index = static_cast<size_t>(segment);
  if (phase == Phase::kForward) return forward_uses()[index];
  return phase == Phase::kBackwardInput ? backward_input_uses()[index]
                                        : backward_weight_uses()[index];
}

}  // namespace strait
