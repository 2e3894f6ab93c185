// Segments one by one, in ranges and on several ranks of x against the fused block.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>

#include "strait/base/errors.h"
#include "tests/model/segment_ranks.h"

namespace strait::model {
namespace {

std::vector<Case> segment_cases() {
  std::vector<Case> cases;
  for (const char* family : {"gpt2", "llama"}) {
    for (const double dropout : {0.0, 0.1}) {
      for (const bool bias : {false, true}) {
        const int64_t kv_heads = family[0] == 'l' ? 4 : 8;
        cases.push_back(
            {{1, 8, kv_heads, 48, 24, 13, bias, dropout, bias}, 40, 3, 11, bias, family});
      }
    }
  }
  return cases;
}

/// OLMo 2 normalizes whole rows of queries, which no two ranks share.
std::vector<int64_t> ranks_of_x(const Case& test_case) {
  if (test_case.family == "olmo2") return {1};
  return {2, 4};
}

/// A block's input and the gradient of its output.
struct Ends {
  explicit Ends(const Case& test_case)
      : input(random_values(test_case.batch * test_case.tokens * test_case.options.width, 7)),
        gradient(random_values(test_case.batch * test_case.tokens * test_case.options.width, 8)) {}
  std::vector<double> input, gradient;
};

template <class T>
struct Fused {
  Fused(const Case& test_case, const Ends& ends, int threads = 1)
      : runner(test_case.shape(), random_input(test_case, 3), random_units(test_case.shape(), 5),
               threads),
        saved(runner.sizes(1).saved_bytes),
        output(runner.forward(1, ends.input, &saved)),
        backward(runner.backward(1, ends.input, saved, ends.gradient, {})) {}
  Runner<T> runner;
  Guarded saved;
  std::vector<double> output;
  typename Runner<T>::Backward backward;
};

class SegmentsTest : public testing::TestWithParam<Case> {};

template <class T>
void expect_the_bits_of_the_fused_block(const Case& test_case) {
  const Ends ends(test_case);
  const Fused<T> fused(test_case, ends);
  for (const Ranges& ranges : {one_by_one(), whole_block(), forward_cuts(), backward_cuts()}) {
    SegmentRanks<T> one(fused.runner, 1);
    EXPECT_EQ(one.forward(ends.input, ranges, false), fused.output) << "keeping nothing";
    EXPECT_EQ(one.forward(ends.input, ranges), fused.output);
    const auto result = one.backward(ends.gradient, ranges);
    EXPECT_EQ(result.input_gradient, fused.backward.input_gradient);
    EXPECT_EQ(result.unit_gradient, fused.backward.unit_gradient);
  }
}

TEST_P(SegmentsTest, EqualTheFusedBlockBitForBit) {
  expect_the_bits_of_the_fused_block<float>(GetParam());
  expect_the_bits_of_the_fused_block<double>(GetParam());
  expect_the_bits_of_the_fused_block<Bfloat16>(GetParam());
}

// Sums of at most 48 terms in another order: 48 x 2^-53 each, through about ten operations, 5e-14
// expected.
constexpr double kTolerance = 1e-12;

TEST_P(SegmentsTest, RanksOfXTogetherEqualTheWholeBlock) {
  const Ends ends(GetParam());
  const Fused<double> fused(GetParam(), ends, 2);
  const UnitShape& unit = fused.runner.model.shape().units[1];
  for (const int64_t x : ranks_of_x(GetParam())) {
    SegmentRanks<double> ranks(fused.runner, x);
    for (const bool single : {false, true}) {
      const Ranges forward = single ? one_by_one() : forward_cuts();
      const Ranges backward = single ? one_by_one() : backward_cuts();
      EXPECT_LT(relative_error(ranks.forward(ends.input, forward), fused.output), kTolerance);
      const auto result = ranks.backward(ends.gradient, backward);
      EXPECT_LT(relative_error(result.input_gradient, fused.backward.input_gradient), kTolerance);
      for (const ParameterShape& parameter : unit.parameters) {
        const auto part = [&](const std::vector<double>& flat) {
          const auto begin = flat.begin() + parameter.offset;
          return std::vector<double>(begin, begin + parameter.elements());
        };
        EXPECT_LT(relative_error(part(result.unit_gradient), part(fused.backward.unit_gradient)),
                  kTolerance)
            << parameter.name << " x " << x;
      }
    }
  }
}

constexpr std::array<GridSizes, 9> kGrids = {
    {{1, 2}, {1, 4}, {1, 8}, {2, 1}, {2, 2}, {2, 4}, {4, 1}, {4, 2}, {8, 1}}};

/// Forward, gradient of the input and of every parameter on all grids of up to eight ranks: their
/// distance from fp64 is at most that of the fused block, and `tolerance`.
template <class T>
void expect_grids_equal(const Case& test_case, const Ends& ends, double tolerance) {
  const Fused<double> exact(test_case, ends, 2);
  const Fused<T> fused(test_case, ends, 2);
  const UnitShape& unit = fused.runner.model.shape().units[1];
  for (const GridSizes& grid : kGrids) {
    const bool fits =
        grid.x == 1 || (test_case.family != "olmo2" && test_case.options.kv_heads % grid.x == 0 &&
                        test_case.options.ffn_width % grid.x == 0);
    if (!fits || test_case.options.width % grid.y != 0) continue;
    SCOPED_TRACE(std::to_string(grid.x) + " x " + std::to_string(grid.y));
    SegmentRanks<T> ranks(fused.runner, grid.x, grid.y);
    const auto expect_near = [&](const std::vector<double>& got, const std::vector<double>& alone,
                                 const std::vector<double>& want, const std::string& what) {
      EXPECT_LT(relative_error(got, want), tolerance + relative_error(alone, want)) << what;
    };
    expect_near(ranks.forward(ends.input, grid_cuts(Phase::kForward)), fused.output, exact.output,
                "output");
    const auto result = ranks.backward(ends.gradient, grid_cuts(Phase::kBackwardInput));
    expect_near(result.input_gradient, fused.backward.input_gradient, exact.backward.input_gradient,
                "input gradient");
    for (const ParameterShape& parameter : unit.parameters) {
      const auto part = [&](const std::vector<double>& flat) {
        const auto begin = flat.begin() + parameter.offset;
        return std::vector<double>(begin, begin + parameter.elements());
      };
      expect_near(part(result.unit_gradient), part(fused.backward.unit_gradient),
                  part(exact.backward.unit_gradient), parameter.name);
    }
  }
}

TEST_P(SegmentsTest, GridsEqualTheWholeBlock) {
  const Ends ends(GetParam());
  expect_grids_equal<double>(GetParam(), ends, kTolerance);
  expect_grids_equal<float>(GetParam(), ends, 1e-6);
}

TEST_P(SegmentsTest, RanksOfXInBfloat16StayWithinItsRoundings) {
  const Ends ends(GetParam());
  const Fused<double> exact(GetParam(), ends);
  const Fused<Bfloat16> fused(GetParam(), ends);
  SegmentRanks<Bfloat16> ranks(fused.runner, ranks_of_x(GetParam()).front());
  const auto output = ranks.forward(ends.input, forward_cuts());
  const auto result = ranks.backward(ends.gradient, backward_cuts());
  // Two ranks round the gradients of two norms' outputs once more each, and nothing of the forward.
  const double more = 2 * 0x1p-8;
  EXPECT_LT(relative_error(output, exact.output), 1.1 * relative_error(fused.output, exact.output));
  EXPECT_LT(relative_error(result.input_gradient, exact.backward.input_gradient),
            relative_error(fused.backward.input_gradient, exact.backward.input_gradient) + more);
  EXPECT_LT(relative_error(result.unit_gradient, exact.backward.unit_gradient),
            relative_error(fused.backward.unit_gradient, exact.backward.unit_gradient) + more);
}

/// What was kept is lost and made again, with the sum over x in the middle.
TEST_P(SegmentsTest, RecomputationGivesTheSameBits) {
  const Ends ends(GetParam());
  const Fused<float> fused(GetParam(), ends);
  for (const int64_t x : {int64_t{1}, ranks_of_x(GetParam()).front()}) {
    SegmentRanks<float> ranks(fused.runner, x);
    ranks.forward(ends.input, forward_cuts());
    const auto first = ranks.backward(ends.gradient, backward_cuts());
    ranks.forward(ends.input, forward_cuts(), false);
    for (const auto& rank : ranks.ranks) rank->forget(~value_set({BlockValue::kInput}));
    const bool behind = block_style(GetParam().family).norm_behind;
    std::vector<SegmentRange> again_made = {{0, 6}, {6, 12}};
    if (behind) again_made = {{0, 6}, {6, 13}, {13, kNumSegments}};  // the norm reads down_sum
    ranks.forward(ends.input, again_made);
    const auto again = ranks.backward(ends.gradient, backward_cuts());
    EXPECT_EQ(again.input_gradient, first.input_gradient);
    EXPECT_EQ(again.unit_gradient, first.unit_gradient);
  }
}

TEST_P(SegmentsTest, AccumulateAddsOnEveryRank) {
  const Ends ends(GetParam());
  const Fused<double> fused(GetParam(), ends);
  SegmentRanks<double> ranks(fused.runner, ranks_of_x(GetParam()).front());
  ranks.forward(ends.input, forward_cuts());
  const auto once = ranks.backward(ends.gradient, backward_cuts());
  ranks.forward(ends.input, forward_cuts());
  const auto twice = ranks.backward(ends.gradient, backward_cuts(), true);
  std::vector<double> doubled = once.unit_gradient;
  for (double& value : doubled) value *= 2;
  EXPECT_LT(relative_error(twice.unit_gradient, doubled), 1e-15);
}

INSTANTIATE_TEST_SUITE_P(Cases, SegmentsTest, testing::ValuesIn(segment_cases()));
INSTANTIATE_TEST_SUITE_P(Families, SegmentsTest, testing::ValuesIn(family_cases()));

/// Products deeper than one block of depth: joined they are the fused block's, apart they add in
/// another order.
TEST(Segments, DeepProductsDifferByTheOrderOfSumsAlone) {
  const Case test_case{{1, 2, 2, 420, 800, 5, true, 0.1, true}, 40, 1, 5};
  const Ends ends(test_case);
  const Fused<double> fused(test_case, ends);
  SegmentRanks<double> one(fused.runner, 1);
  EXPECT_EQ(one.forward(ends.input, whole_block()), fused.output);
  EXPECT_LT(relative_error(one.forward(ends.input, one_by_one()), fused.output), kTolerance);
  EXPECT_LT(relative_error(one.backward(ends.gradient, one_by_one()).unit_gradient,
                           fused.backward.unit_gradient),
            kTolerance);
}

/// Ranks that hold half of the tokens each: positions and dropout go by the number of the token
/// in its sequence.
TEST(Segments, TokensOfARankKeepTheirNumbers) {
  for (const char* family : {"gpt2", "llama"}) {
    const Case test_case{{1, 4, 4, 24, 20, 16, true, 0.3, true}, 40, 1, 10, false, family};
    const Ends ends(test_case);
    Fused<double> fused(test_case, ends);
    SegmentRanks<double> whole(fused.runner, 1);
    whole.forward(ends.input, one_by_one());
    Runner<double> half(test_case.shape(), random_input(test_case, 3),
                        random_units(test_case.shape(), 5));
    half.batch.tokens = 5;
    const auto first_rows = [](std::vector<double> rows, int64_t width, int64_t begin) {
      return std::vector<double>(rows.begin() + begin * width, rows.begin() + (begin + 5) * width);
    };
    for (const int64_t begin : {0, 5}) {
      SegmentRank<double> rank(half, AxisPlace{}, AxisPlace{});
      rank.position = begin;
      const int64_t qkv_width = rank.extent.qkv_width(), width = rank.extent.width;
      rank.set(BlockValue::kInput, first_rows(ends.input, width, begin));
      rank.run(Phase::kForward, {0, 4});
      const auto at = [&](BlockValue value) { return whole.ranks[0]->get(value); };
      EXPECT_EQ(rank.get(BlockValue::kQkv), first_rows(at(BlockValue::kQkv), qkv_width, begin));
      rank.set(BlockValue::kOutputSum, first_rows(at(BlockValue::kOutputSum), width, begin));
      rank.run(Phase::kForward, {6, 15});
      EXPECT_EQ(rank.get(BlockValue::kMiddle), first_rows(at(BlockValue::kMiddle), width, begin));
      EXPECT_EQ(rank.get(BlockValue::kOutput), first_rows(at(BlockValue::kOutput), width, begin));
      rank.set(BlockValue::kOutputGradient, first_rows(ends.gradient, width, begin));
      rank.run(Phase::kBackwardInput, {13, 15});
      whole.ranks[0]->set(BlockValue::kOutputGradient, ends.gradient);
      whole.ranks[0]->run(Phase::kBackwardInput, {13, 15});
      EXPECT_EQ(rank.get(BlockValue::kDownSumGradient),
                first_rows(at(BlockValue::kDownSumGradient), width, begin));
    }
  }
}

template <class Action>
std::string refusal(Action&& action) {
  try {
    action();
  } catch (const InternalError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Segments, RefuseWhatTheyCannotDo) {
  const Case test_case{{1, 4, 4, 24, 20, 16, true, 0.1, true}, 40, 1, 10};
  const Ends ends(test_case);
  Fused<float> fused(test_case, ends);
  const SegmentedBlock& segments = *fused.runner.model.block(1).segments();
  EXPECT_EQ(fused.runner.model.block(0).segments(), nullptr);
  SegmentCall call;
  call.settings = &fused.runner.settings;
  call.batch = &fused.runner.batch;
  call.weights = fused.runner.weights[1].data();
  const std::string missing = refusal([&] { segments.forward(call, {6, 13}); });
  EXPECT_NE(missing.find("attention_branch to down: input is missing"), std::string::npos)
      << missing;
  EXPECT_NE(refusal([&] { segments.forward(call, {6, 6}); }), "accepted");
  std::vector<float> memory(10000);
  call.give(BlockValue::kQkv, memory.data());
  EXPECT_NE(refusal([&] { segments.forward(call, {4, 5}); }), "accepted") << "no workspace";
  call.workspace = memory.data() + 5000;
  EXPECT_EQ(refusal([&] { segments.forward(call, {4, 5}); }), "accepted");
  call.position = 1;
  EXPECT_NE(refusal([&] { segments.forward(call, {4, 5}); }), "accepted") << "a part of the tokens";

  const Model shared(local_shape(test_case.shape(), 2), Dtype::kFloat32);
  const std::string whole = refusal([&] { shared.block(1).forward(fused.runner.call(1), 0, 4); });
  EXPECT_NE(whole.find("runs by its segments"), std::string::npos) << whole;
}

}  // namespace
}  // namespace strait::model
