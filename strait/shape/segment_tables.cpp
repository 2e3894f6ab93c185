// Names of segments and values, and what each segment uses in each phase.
#include "strait/shape/segment.h"

namespace strait {
namespace {

using enum BlockValue;
using enum Access;
using Uses = std::vector<ValueUse>;

constexpr std::array<const char*, kNumSegments> kSegmentNames = {
    "attention_norm", "qkv", "attention", "output", "attention_add",
    "mlp_norm",       "up",  "down",      "mlp_add"};

constexpr std::array<const char*, kNumBlockValues> kValueNames = {"input",
                                                                  "attention_mean",
                                                                  "attention_rstd",
                                                                  "normed_attention",
                                                                  "raw_query_key",
                                                                  "query_key_rstd",
                                                                  "qkv",
                                                                  "log_sum_exp",
                                                                  "attention",
                                                                  "output_sum",
                                                                  "attention_branch",
                                                                  "attention_branch_rstd",
                                                                  "middle",
                                                                  "mlp_mean",
                                                                  "mlp_rstd",
                                                                  "normed_mlp",
                                                                  "up",
                                                                  "activated",
                                                                  "down_sum",
                                                                  "mlp_branch",
                                                                  "mlp_branch_rstd",
                                                                  "output",
                                                                  "output_gradient",
                                                                  "mlp_branch_gradient",
                                                                  "down_sum_gradient",
                                                                  "up_gradient",
                                                                  "normed_mlp_gradient",
                                                                  "mlp_norm_gradient",
                                                                  "middle_gradient",
                                                                  "attention_branch_gradient",
                                                                  "output_sum_gradient",
                                                                  "kept_attention",
                                                                  "attention_gradient",
                                                                  "delta",
                                                                  "query_sum",
                                                                  "qkv_gradient",
                                                                  "query_key_norm_gradient",
                                                                  "normed_attention_gradient",
                                                                  "attention_norm_gradient",
                                                                  "input_gradient"};

const std::array<Uses, kNumSegments>& forward_uses() {
  static const std::array<Uses, kNumSegments> uses = {
      Uses{{kInput, kRead},
           {kAttentionMean, kWrite},
           {kAttentionRstd, kWrite},
           {kNormedAttention, kWrite}},
      Uses{{kNormedAttention, kRead},
           {kRawQueryKey, kWrite},
           {kQueryKeyRstd, kWrite},
           {kQkv, kWrite}},
      Uses{{kQkv, kRead}, {kLogSumExp, kWrite}, {kAttention, kWrite}},
      Uses{{kAttention, kRead}, {kOutputSum, kWrite}},
      Uses{{kOutputSum, kRead},
           {kInput, kRead},
           {kAttentionBranch, kWrite},
           {kAttentionBranchRstd, kWrite},
           {kMiddle, kWrite}},
      Uses{{kMiddle, kRead}, {kMlpMean, kWrite}, {kMlpRstd, kWrite}, {kNormedMlp, kWrite}},
      Uses{{kNormedMlp, kRead}, {kUp, kWrite}},
      Uses{{kUp, kRead}, {kActivated, kWrite}, {kDownSum, kWrite}},
      Uses{{kDownSum, kRead},
           {kMiddle, kRead},
           {kMlpBranch, kWrite},
           {kMlpBranchRstd, kWrite},
           {kOutput, kWrite}}};
  return uses;
}

const std::array<Uses, kNumSegments>& backward_input_uses() {
  static const std::array<Uses, kNumSegments> uses = {
      Uses{{kNormedAttentionGradient, kRead},
           {kInput, kRead},
           {kAttentionMean, kRead},
           {kAttentionRstd, kRead},
           {kMiddleGradient, kRead},
           {kInputGradient, kWrite},
           {kAttentionNormGradient, kWrite}},
      Uses{{kQkvGradient, kUpdate},
           {kRawQueryKey, kRead},
           {kQueryKeyRstd, kRead},
           {kQueryKeyNormGradient, kWrite},
           {kInput, kRead},
           {kAttentionMean, kRead},
           {kAttentionRstd, kRead},
           {kNormedAttentionGradient, kWrite},
           {kNormedAttention, kWrite}},
      Uses{{kAttentionGradient, kRead},
           {kQkv, kRead},
           {kAttention, kRead},
           {kLogSumExp, kRead},
           {kDelta, kWrite},
           {kQuerySum, kWrite},
           {kQkvGradient, kWrite}},
      Uses{{kOutputSumGradient, kRead},
           {kAttention, kRead},
           {kAttentionGradient, kWrite},
           {kKeptAttention, kWrite}},
      Uses{{kMiddleGradient, kRead},
           {kAttentionBranch, kRead},
           {kAttentionBranchRstd, kRead},
           {kOutputSumGradient, kWrite},
           {kAttentionBranchGradient, kWrite}},
      Uses{{kNormedMlpGradient, kRead},
           {kMiddle, kRead},
           {kMlpMean, kRead},
           {kMlpRstd, kRead},
           {kOutputGradient, kRead},
           {kMiddleGradient, kWrite},
           {kMlpNormGradient, kWrite}},
      Uses{{kUpGradient, kRead},
           {kMiddle, kRead},
           {kMlpMean, kRead},
           {kMlpRstd, kRead},
           {kNormedMlpGradient, kWrite},
           {kNormedMlp, kWrite}},
      Uses{{kDownSumGradient, kRead}, {kUp, kRead}, {kActivated, kWrite}, {kUpGradient, kWrite}},
      Uses{{kOutputGradient, kRead},
           {kMlpBranch, kRead},
           {kMlpBranchRstd, kRead},
           {kDownSumGradient, kWrite},
           {kMlpBranchGradient, kWrite}}};
  return uses;
}

const std::array<Uses, kNumSegments>& backward_weight_uses() {
  static const std::array<Uses, kNumSegments> uses = {
      Uses{{kAttentionNormGradient, kRead}},
      Uses{{kQkvGradient, kRead}, {kNormedAttention, kRead}, {kQueryKeyNormGradient, kRead}},
      Uses{},
      Uses{{kOutputSumGradient, kRead}, {kKeptAttention, kRead}},
      Uses{{kOutputSumGradient, kRead}, {kAttentionBranchGradient, kRead}},
      Uses{{kMlpNormGradient, kRead}},
      Uses{{kUpGradient, kRead}, {kNormedMlp, kRead}},
      Uses{{kDownSumGradient, kRead}, {kActivated, kRead}},
      Uses{{kDownSumGradient, kRead}, {kMlpBranchGradient, kRead}}};
  return uses;
}

}  // namespace

const char* segment_name(Segment segment) { return kSegmentNames[static_cast<size_t>(segment)]; }
const char* value_name(BlockValue value) { return kValueNames[static_cast<size_t>(value)]; }

const std::vector<ValueUse>& segment_uses(Segment segment, Phase phase) {
  const auto index = static_cast<size_t>(segment);
  if (phase == Phase::kForward) return forward_uses()[index];
  return phase == Phase::kBackwardInput ? backward_input_uses()[index]
                                        : backward_weight_uses()[index];
}

}  // namespace strait
