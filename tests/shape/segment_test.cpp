#include "strait/shape/segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "strait/shape/split.h"

namespace strait {
namespace {

using enum BlockValue;

constexpr Phase kPhases[] = {Phase::kForward, Phase::kBackwardInput, Phase::kBackwardWeight};

std::vector<ModelShape> models() {
  std::vector<ModelShape> result = {gpt2_shape({1, 4, 4, 24, 20, 16, true, 0.1, true}, 12),
                                    llama_shape({1, 4, 2, 24, 20, 16, false, 0.0, false}, 12)};
  result.push_back(local_shape(result[0], 4));
  result.push_back(local_shape(result[1], 2));
  result.push_back(local_shape(result[0], 2, 3));
  result.push_back(local_shape(result[1], 1, 4));
  ShapeOptions options{1, 4, 2, 24, 20, 16, false, 0.0, false};
  result.push_back(model_shape({"", "olmo2", options}, 12));
  options.window = 3;
  result.push_back(model_shape({"", "mistral", options}, 12));
  options.window = 0;
  options.head_width = 10;
  result.push_back(model_shape({"", "qwen3", options}, 12));
  result.push_back(local_shape(result.back(), 2));
  options.window = 3;
  options.window_pattern = 2;
  result.push_back(model_shape({"", "gemma3", options}, 12));
  result.push_back(local_shape(result.back(), 2, 3));
  return result;
}

SegmentRange one(int index) { return {index, index + 1}; }

TEST(Segment, CostsAddUpToTheBlock) {
  for (const ModelShape& model : models()) {
    for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
      const BlockSizes block = block_sizes(model, 1, 3, 7, dtype);
      SegmentSizes sum;
      for (int index = 0; index < kNumSegments; ++index) {
        const SegmentSizes sizes = segment_sizes(model, one(index), 3, 7, dtype);
        sum.forward_flops += sizes.forward_flops;
        sum.backward_input_flops += sizes.backward_input_flops;
        sum.backward_weight_flops += sizes.backward_weight_flops;
        sum.saved_bytes += sizes.saved_bytes;
      }
      EXPECT_EQ(sum.forward_flops, block.forward_flops);
      EXPECT_EQ(sum.backward_input_flops + sum.backward_weight_flops, block.backward_flops);
      EXPECT_EQ(sum.saved_bytes, block.saved_bytes);
      EXPECT_EQ(segment_sizes(model, {}, 3, 7, dtype).saved_bytes, block.saved_bytes);
    }
  }
}

TEST(Segment, NamesDiffer) {
  std::set<std::string> names;
  for (int index = 0; index < kNumSegments; ++index)
    names.insert(segment_name(static_cast<Segment>(index)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumSegments));
  names.clear();
  for (int index = 0; index < kNumBlockValues; ++index)
    names.insert(value_name(static_cast<BlockValue>(index)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumBlockValues));
}

/// What the table says about the forward and the backward must fit what the fused block keeps.
TEST(Segment, KeptIsWhatTheBackwardReadsAndDoesNotMakeAgain) {
  ValueSet forward, made_again, read, weight;
  for (int index = 0; index < kNumSegments; ++index) {
    const auto segment = static_cast<Segment>(index);
    for (const ValueUse& use : segment_uses(segment, Phase::kForward))
      if (use.access == Access::kWrite) forward |= value_set({use.value});
    for (const ValueUse& use : segment_uses(segment, Phase::kBackwardInput))
      (use.access == Access::kRead ? read : made_again) |= value_set({use.value});
    for (const ValueUse& use : segment_uses(segment, Phase::kBackwardWeight))
      weight |= value_set({use.value});
  }
  EXPECT_EQ(kept_values(), forward & read & ~made_again);
  EXPECT_EQ(bundle_values() | value_set({kQueryKeyNormGradient}), weight);
  EXPECT_TRUE((weight & ~made_again).none()) << "backward_weight reads what backward_input makes";
  for (const ModelShape& model : models()) {
    const BlockExtent extent = block_extent(model, 2, 3, Dtype::kBfloat16);
    for (int index = 0; index < kNumBlockValues; ++index) {
      const auto value = static_cast<BlockValue>(index);
      const bool exists = value_elements(value, extent) > 0;
      EXPECT_EQ(saved_offsets(extent)[value] >= 0,
                kept_values().test(value_index(value)) && exists);
      const bool deferred = deferred_values().test(value_index(value));
      EXPECT_EQ(deferred_offsets(extent)[value] >= 0, deferred && exists);
      EXPECT_EQ(bundle_offsets(extent)[value] >= 0,
                bundle_values().test(value_index(value)) && !deferred && exists);
    }
  }
}

/// A block whose weights wait holds no more than one whose backward waits: no more than what the
/// forward keeps and its input.
TEST(Segment, WhatIsDeferredIsNoLargerThanWhatIsKept) {
  EXPECT_TRUE((deferred_values() & ~bundle_values()).none());
  for (const ModelShape& model : models()) {
    const BlockExtent extent = block_extent(model, 2, 64, Dtype::kBfloat16);
    EXPECT_LE(deferred_offsets(extent).elements,
              saved_offsets(extent).elements + extent.rows * extent.width);
  }
}

/// The cuts of two tensor ranks, as docs/programs.md shows them.
TEST(Segment, RangesBetweenTheSumsOfX) {
  const RangeUses first = range_uses({0, 6}, Phase::kForward);
  EXPECT_EQ(first.reads, value_set({kInput, kGatheredKeys}));
  EXPECT_EQ(first.writes, value_set({kAttentionMean, kAttentionRstd, kRawQueryKey, kQueryKeyRstd,
                                     kQkv, kLogSumExp, kAttention, kOutputSum}));
  EXPECT_EQ(first.inside, value_set({kAttentionMoments, kNormedAttention, kOrderedKeys}));
  EXPECT_EQ(range_uses({0, 6}, Phase::kForward, false).writes, value_set({kOutputSum}));
  const RangeUses second = range_uses({6, 13}, Phase::kForward, false);
  EXPECT_EQ(second.reads, value_set({kOutputSum, kInput}));
  EXPECT_EQ(second.writes, value_set({kMiddle, kDownSum}));
  const RangeUses up = range_uses({10, 15}, Phase::kBackwardInput);
  EXPECT_EQ(up.reads, value_set({kOutputGradient, kMlpBranch, kMlpBranchRstd, kUp, kMiddle,
                                 kMlpMean, kMlpRstd}));
  EXPECT_EQ(up.writes, value_set({kDownSumGradient, kMlpBranchGradient, kActivated, kUpGradient,
                                  kNormedMlpGradient, kNormedMlp}));
  const RangeUses qkv = range_uses({2, 10}, Phase::kBackwardInput);
  EXPECT_TRUE((qkv.reads & value_set({kNormedMlpGradient, kOutputGradient})).count() == 2);
  EXPECT_EQ(qkv.inside, value_set({kMlpGradientMoments, kAttentionBranchGradientMoments,
                                   kAttentionGradient, kDelta, kQuerySum}));
  const RangeUses last = range_uses({0, 2}, Phase::kBackwardInput);
  EXPECT_EQ(last.writes, value_set({kInputGradient, kAttentionNormGradient}));
  EXPECT_EQ(range_uses({2, 10}, Phase::kBackwardWeight).reads,
            value_set({kMlpNormGradient, kOutputSumGradient, kAttentionBranchGradient,
                       kKeptAttention, kQkvGradient, kQueryKeyNormGradient, kNormedAttention}));
}

TEST(Segment, RangesAreCutBehindEverySumAndWhereKeysAreExchanged) {
  const auto cuts = [](SegmentRange range, Phase phase) {
    std::vector<std::pair<int, int>> pieces;
    for (const SegmentRange piece : cut_at_exchanges(range, phase))
      pieces.emplace_back(piece.begin, piece.end);
    return pieces;
  };
  using Pieces = std::vector<std::pair<int, int>>;
  EXPECT_EQ(cuts({}, Phase::kForward), (Pieces{{0, 1},
                                               {1, 3},
                                               {3, 4},
                                               {4, 5},
                                               {5, 6},
                                               {6, 7},
                                               {7, 9},
                                               {9, 11},
                                               {11, 13},
                                               {13, 14},
                                               {14, 15}}));
  EXPECT_EQ(cuts({0, 12}, Phase::kForward).back(), std::make_pair(11, 12));
  EXPECT_EQ(cuts({4, 6}, Phase::kForward), (Pieces{{4, 5}, {5, 6}}));
  EXPECT_EQ(cuts({}, Phase::kBackwardInput), (Pieces{{14, 15},
                                                     {12, 14},
                                                     {10, 12},
                                                     {9, 10},
                                                     {7, 9},
                                                     {5, 7},
                                                     {4, 5},
                                                     {3, 4},
                                                     {2, 3},
                                                     {1, 2},
                                                     {0, 1}}));
  EXPECT_EQ(cuts({}, Phase::kBackwardWeight), (Pieces{{0, 15}}));
}

/// What lies between products has a rank's rows, and no piece of a phase works on both.
TEST(Segment, RowsAreSplitBetweenProducts) {
  for (ModelShape whole : models()) {
    const bool whole_rows = whole.style.query_key_norm == QueryKeyNorm::kWidth;  // x = 1
    if (whole.x > 1 || whole.y > 1 || whole_rows) continue;
    const BlockExtent all = block_extent(local_shape(whole, 2), 2, 6, Dtype::kBfloat16);
    whole.splits_rows = true;
    EXPECT_FALSE(local_shape(whole, 1).splits_rows);
    const ModelShape model = local_shape(whole, 2);
    const BlockExtent extent = block_extent(model, 2, 6, Dtype::kBfloat16);
    const ValueSet of_rows =
        value_set({kInput, kAttentionMean, kAttentionRstd, kAttentionBranch, kAttentionBranchRstd,
                   kMiddle, kMlpMean, kMlpRstd, kMlpBranch, kMlpBranchRstd, kOutput,
                   kOutputGradient, kMiddleGradient, kInputGradient});
    for (int index = 0; index < kNumBlockValues; ++index) {
      const auto value = static_cast<BlockValue>(index);
      const int64_t parts = of_rows[value_index(value)] ? 2 : 1;
      EXPECT_EQ(parts * value_elements(value, extent), value_elements(value, all))
          << value_name(value);
      if (!is_exchanged_by_rows(value) && !is_norm_gradient(value)) continue;
      EXPECT_LT(bundle_offsets(extent)[value], 0) << value_name(value);
      EXPECT_LT(deferred_offsets(extent)[value], 0) << value_name(value);
    }
    EXPECT_EQ(segment_sizes(model, {}, 2, 6, Dtype::kBfloat16).saved_bytes,
              block_sizes(model, 1, 2, 6, Dtype::kBfloat16).saved_bytes);
    EXPECT_EQ(2 * block_sizes(model, 1, 2, 6, Dtype::kBfloat16).output_bytes,
              block_sizes(whole, 1, 2, 6, Dtype::kBfloat16).output_bytes);
  }
  for (const Phase phase : {Phase::kForward, Phase::kBackwardInput})
    for (const SegmentRange piece : cut_at_exchanges({}, phase, true))
      for (int index = piece.begin; index < piece.end; ++index)
        EXPECT_EQ(is_between_products(static_cast<Segment>(index)),
                  is_between_products(static_cast<Segment>(piece.begin)));
}

TEST(Segment, WhatIsKeptOfUpLiesApartWhereSequencesAreShared) {
  for (const ModelShape& whole : models()) {
    if (whole.x > 1 || whole.y > 1) continue;
    const ModelShape model = local_shape(whole, 1, 1, 2);
    const BlockExtent extent = block_extent(model, 2, 64, Dtype::kBfloat16);
    const ValueOffsets saved = saved_offsets(extent);
    EXPECT_LT(saved[kUp], 0);
    EXPECT_EQ(saved.elements + value_elements(kUp, extent),
              saved_offsets(block_extent(whole, 2, 64, Dtype::kBfloat16)).elements);
    const int64_t bytes = block_sizes(model, 1, 2, 64, Dtype::kBfloat16).saved_bytes;
    EXPECT_EQ(bytes, saved.elements * dtype_bytes(Dtype::kBfloat16));
    EXPECT_EQ(segment_sizes(model, {}, 2, 64, Dtype::kBfloat16).saved_bytes, bytes);
  }
}

TEST(Segment, JoinedSegmentsHaveNoSumBetweenThem) {
  const RangeUses whole = range_uses({}, Phase::kForward, false);
  EXPECT_EQ(whole.reads, value_set({kInput, kGatheredKeys}));
  EXPECT_EQ(whole.writes, value_set({kOutput}));
  EXPECT_FALSE(whole.inside.test(value_index(kOutputSum)));
  EXPECT_FALSE(whole.inside.test(value_index(kDownSum)));
  const BlockExtent extent = block_extent(models()[0], 2, 3, Dtype::kFloat32);
  EXPECT_LT(workspace_offsets(extent, {}, Phase::kForward, value_set({kInput, kOutput}))[kDownSum],
            0);
}

/// Values that a segment of the range uses at or before `step`, and one at or behind it.
std::set<BlockValue> alive(SegmentRange range, Phase phase, int step) {
  std::set<BlockValue> before, behind;
  for (int index = range.begin; index < range.end; ++index) {
    for (const ValueUse& use : segment_uses(static_cast<Segment>(index), phase)) {
      if (index <= step) before.insert(use.value);
      if (index >= step) behind.insert(use.value);
    }
  }
  std::set<BlockValue> both;
  std::ranges::set_intersection(before, behind, std::inserter(both, both.end()));
  return both;
}

/// Every range in every phase: what lives at the same time does not overlap, what is given has no
/// place.
TEST(Segment, WorkspacePartsDoNotOverlapWhileTheyLive) {
  for (const ModelShape& model : models()) {
    const BlockExtent extent = block_extent(model, 2, 3, Dtype::kBfloat16);
    for (const Phase phase : kPhases) {
      for (int begin = 0; begin < kNumSegments; ++begin) {
        for (int end = begin + 1; end <= kNumSegments; ++end) {
          const SegmentRange range{begin, end};
          const RangeUses uses = range_uses(range, phase, false);
          const ValueSet given = uses.reads | uses.writes;
          const ValueOffsets offsets = workspace_offsets(extent, range, phase, given);
          for (int index = 0; index < kNumBlockValues; ++index) {
            const auto value = static_cast<BlockValue>(index);
            const bool exists = value_elements(value, extent) > 0;
            const bool inside = uses.inside.test(value_index(value));
            EXPECT_EQ(offsets[value] >= 0, inside && exists) << value_name(value);
          }
          for (int step = begin; step < end; ++step) {
            std::vector<int> used(static_cast<size_t>(offsets.elements));
            for (const BlockValue value : alive(range, phase, step)) {
              if (offsets[value] < 0) continue;
              EXPECT_EQ(offsets[value] % (kPartAlignment * extent.wide), 0);
              for (int64_t i = 0; i < value_elements(value, extent); ++i)
                ++used.at(static_cast<size_t>(offsets[value] + i));
            }
            EXPECT_THAT(used, testing::Each(testing::Le(1)));
          }
        }
      }
    }
  }
}

TEST(Segment, JoinedProductsDoNotWriteOverTheirOperands) {
  const BlockExtent extent = block_extent(models()[1], 2, 3, Dtype::kFloat32);
  const ValueOffsets at = workspace_offsets(extent, {}, Phase::kForward, value_set({kInput}));
  const auto disjoint = [&](BlockValue a, BlockValue b) {
    return at[a] + value_elements(a, extent) <= at[b] || at[b] + value_elements(b, extent) <= at[a];
  };
  EXPECT_TRUE(disjoint(kAttention, kMiddle));
  EXPECT_TRUE(disjoint(kActivated, kOutput));
}

TEST(Segment, PartialSumsAreWideInTheForwardAndForParameters) {
  EXPECT_EQ(value_dtype(kOutputSum, Dtype::kBfloat16), Dtype::kFloat32);
  EXPECT_EQ(value_dtype(kNormedMlpGradient, Dtype::kBfloat16), Dtype::kBfloat16);
  EXPECT_EQ(value_dtype(kDownSum, Dtype::kFloat64), Dtype::kFloat64);
  EXPECT_EQ(value_dtype(kQkvSum, Dtype::kBfloat16), Dtype::kFloat32);
  EXPECT_EQ(value_dtype(kMlpMoments, Dtype::kBfloat16), Dtype::kFloat64);
  EXPECT_EQ(value_dtype(kActivatedGradient, Dtype::kBfloat16), Dtype::kBfloat16);
  int partial_x = 0, partial_y = 0;
  for (int index = 0; index < kNumBlockValues; ++index) {
    const bool x = partial_over_x(static_cast<BlockValue>(index));
    const bool y = partial_over_y(static_cast<BlockValue>(index));
    EXPECT_FALSE(x && y);
    partial_x += x ? 1 : 0;
    partial_y += y ? 1 : 0;
  }
  EXPECT_EQ(partial_x, 5);
  EXPECT_EQ(partial_y, 12);
  EXPECT_EQ(value_dtype(kQueryKeyNormGradient, Dtype::kBfloat16), Dtype::kFloat32);
}

}  // namespace
}  // namespace strait
