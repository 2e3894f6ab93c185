// Blocks on bf16 against the same blocks in fp64 on the same bf16 numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/model/runner.h"

namespace strait::model {
namespace {

// One rounding to bf16: at most 2^-8 of the value.
constexpr double kUnit = 0x1p-8;
// Forward of a transformer block: the branches pass six and seven stored values (norm, qkv,
// probabilities, attention, residual; norm, up, activation, output); norms and softmax keep errors
// at their relative size. Errors of a whole chain of roundings add up to at most their number, as
// long as attention's scores, whose errors are exponentiated, are of size one: rounded_units sees
// to it.
constexpr double kForward = 9 * kUnit;
// Backward: the forward's values, and as many stored gradients.
constexpr double kBackward = 18 * kUnit;

std::vector<double> rounded(std::vector<double> values) {
  for (double& value : values) value = Bfloat16(value);
  return values;
}

std::vector<std::vector<double>> rounded_units(const ModelShape& shape, uint64_t seed) {
  std::vector<std::vector<double>> units = random_units(shape, seed);
  const double scale = std::min(1.0, 4.0 / std::sqrt(static_cast<double>(shape.options.width)));
  for (auto& unit : units) {
    for (double& value : unit) value *= scale;
    unit = rounded(unit);
  }
  return units;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const auto dot = [](const auto& x, const auto& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  return dot(a, b) / std::sqrt(dot(a, a) * dot(b, b));
}

std::vector<Case> bf16_cases() {
  return {{{1, 3, 3, 15, 22, 13, true, 0.0, false}, 37, 3, 11, false},
          {{1, 3, 3, 15, 22, 13, false, 0.25, true}, 37, 3, 11, true},
          {{1, 1, 1, 1, 1, 1, true, 0.0, false}, 2, 1, 1, false},
          {{1, 2, 2, 64, 256, 130, true, 0.0, true}, 65, 2, 129, true},
          {{1, 2, 2, 34, 70, 200, false, 0.1, false}, 65, 1, 200, false},
          {{1, 1, 1, 256, 40, 70, true, 0.0, true}, 65, 1, 70, true},
          {{1, 4, 2, 24, 22, 13, false, 0.0, false}, 37, 3, 11, true, "llama"},
          {{1, 6, 1, 60, 100, 130, true, 0.1, true}, 65, 2, 129, false, "llama"}};
}

class Bfloat16Test : public testing::TestWithParam<Case> {};

TEST_P(Bfloat16Test, TransformerStaysWithinItsRoundings) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = rounded_units(shape, 5);
  const int64_t count = input.batch * input.tokens * input.options.width;
  const auto x = rounded(random_values(count, 7)), dy = rounded(random_values(count, 8));
  Runner<double> exact(shape, input, units);
  Guarded exact_saved(exact.sizes(1).saved_bytes);
  const auto expected_out = exact.forward(1, x, &exact_saved);
  const auto expected = exact.backward(1, x, exact_saved, dy, {});
  std::vector<double> first;
  for (const int threads : {1, 2}) {
    Runner<Bfloat16> runner(shape, input, units, threads);
    Guarded saved(runner.sizes(1).saved_bytes);
    const auto out = runner.forward(1, x, &saved);
    EXPECT_LT(relative_error(out, expected_out), kForward);
    const auto result = runner.backward(1, x, saved, dy, {});
    EXPECT_LT(relative_error(result.input_gradient, expected.input_gradient), kBackward);
    EXPECT_LT(relative_error(result.unit_gradient, expected.unit_gradient), kBackward);
    EXPECT_GT(cosine(result.unit_gradient, expected.unit_gradient), 0.999);
    if (threads == 1) first = result.unit_gradient;
    EXPECT_EQ(result.unit_gradient, first) << "threads";
  }
}

/// Whatever multiplies: forward, backward and loss come from it, within the same bounds.
TEST_P(Bfloat16Test, SettingsSayWhatMultiplies) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = rounded_units(shape, 5);
  const int64_t count = input.batch * input.tokens * input.options.width;
  const auto x = rounded(random_values(count, 7)), dy = rounded(random_values(count, 8));
  Runner<double> exact(shape, input, units);
  Guarded exact_saved(exact.sizes(1).saved_bytes);
  exact.forward(1, x, &exact_saved);
  const auto expected = exact.backward(1, x, exact_saved, dy, {});
  using enum kernel::NarrowProducts;
  std::vector<std::vector<double>> gradients;
  std::vector<double> losses;
  for (const kernel::NarrowProducts products : {kWidened, kPlainTiles, kOneDnn}) {
    Runner<Bfloat16> runner(shape, input, units);
    runner.settings.products = products;
    Guarded saved(runner.sizes(1).saved_bytes);
    runner.forward(1, x, &saved);
    const auto result = runner.backward(1, x, saved, dy, {});
    EXPECT_LT(relative_error(result.input_gradient, expected.input_gradient), kBackward);
    EXPECT_LT(relative_error(result.unit_gradient, expected.unit_gradient), kBackward);
    gradients.push_back(result.unit_gradient);
    losses.push_back(runner.step(false, 9.0).loss);
  }
  if (count < 100) return;  // a sum of one product has one order
  EXPECT_NE(gradients[0], gradients[1]) << "plain tiles add even and odd depths apart";
  EXPECT_NE(losses[0], losses[1]);
}

TEST_P(Bfloat16Test, VariantsGiveTheSameBits) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = rounded_units(shape, 5);
  const int64_t count = input.batch * input.tokens * input.options.width;
  const auto x = rounded(random_values(count, 7)), dy = rounded(random_values(count, 8));
  Runner<Bfloat16> runner(shape, input, units);
  Guarded saved(runner.sizes(1).saved_bytes), stepwise(runner.sizes(1).saved_bytes);
  const auto out = runner.forward(1, x, &saved);
  EXPECT_EQ(runner.forward(1, x, nullptr), out) << "keeping nothing";
  EXPECT_EQ(runner.forward(1, x, &stepwise, true), out) << "segment by segment";
  const auto merged = runner.backward(1, x, saved, dy, {});
  for (const bool step : {false, true}) {
    const auto split = runner.backward(1, x, stepwise, dy, {.split = true, .stepwise = step});
    EXPECT_EQ(split.input_gradient, merged.input_gradient);
    EXPECT_EQ(split.unit_gradient, merged.unit_gradient);
  }
  const auto in_place = runner.backward(1, x, saved, dy, {.in_place = true});
  EXPECT_EQ(in_place.input_gradient, merged.input_gradient);
  EXPECT_EQ(in_place.unit_gradient, merged.unit_gradient);
}

/// Gradients grow beyond what bf16 could add to: 1 + 2^-10 would stay 1.
TEST_P(Bfloat16Test, WeightGradientsAreSummedUpInFloat) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = rounded_units(shape, 5);
  const int64_t count = input.batch * input.tokens * input.options.width;
  const auto x = rounded(random_values(count, 7)), dy = rounded(random_values(count, 8, 1e-3));
  Runner<Bfloat16> runner(shape, input, units);
  Guarded saved(runner.sizes(1).saved_bytes);
  runner.forward(1, x, &saved);
  const auto plain = runner.backward(1, x, saved, dy, {});
  auto added = runner.backward(1, x, saved, dy, {.accumulate = true, .start = 5.0});
  // fp32: 5 + g is off by at most 2^-22.
  for (size_t i = 0; i < added.unit_gradient.size(); ++i) {
    ASSERT_NEAR(added.unit_gradient[i] - 5.0, plain.unit_gradient[i], 0x1p-21) << i;
  }
}

TEST_P(Bfloat16Test, WholeStepIsFiniteAndPointsDownhill) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = rounded_units(shape, 5);
  Runner<double> exact(shape, input, units);
  Runner<Bfloat16> runner(shape, input, units, 2);
  const auto expected = exact.step();
  const auto result = runner.step(false, 9.0);
  EXPECT_NEAR(result.loss, expected.loss, kForward * (1.0 + expected.loss));
  // An fp32 head on the same numbers: the loss itself is not rounded to bf16.
  EXPECT_NE(result.loss, static_cast<double>(Bfloat16(result.loss)));
  for (size_t unit = 0; unit < shape.units.size(); ++unit) {
    const std::vector<double> zeros(expected.gradients[unit].size(), 0.0);
    if (relative_error(expected.gradients[unit], zeros) < 1e-12) continue;  // width 1: norms give 0
    for (const double value : result.gradients[unit]) ASSERT_TRUE(std::isfinite(value));
    EXPECT_GT(cosine(result.gradients[unit], expected.gradients[unit]), 0.99)
        << shape.units[unit].name;
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Bfloat16Test, testing::ValuesIn(bf16_cases()));

}  // namespace
}  // namespace strait::model
