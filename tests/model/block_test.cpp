// Each block against LibTorch's autograd in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "strait/base/errors.h"
#include "strait/model/rotary_angles.h"
#include "tests/model/runner.h"

namespace strait::model {
namespace {

// Both sides sum at most about a thousand fp64 terms (2^-53 each) through a chain of about ten
// operations: 1e-13 is expected; the vectorised exp and the different order of sums may cost
// another factor of 100.
constexpr double kTolerance = 1e-11;

std::vector<double> values_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {dense.data_ptr<double>(), dense.data_ptr<double>() + dense.numel()};
}

at::Tensor leaf_of(const std::vector<double>& values, at::IntArrayRef sizes) {
  return at::tensor(values, at::kDouble).reshape(sizes).requires_grad_();
}

std::vector<Case> block_cases() {
  std::vector<Case> cases;
  for (const bool bias : {false, true}) {
    for (const double dropout : {0.0, 0.25}) {
      for (const bool documents : {false, true}) {
        cases.push_back({{1, 3, 3, 15, 22, 13, bias, dropout, false}, 37, 3, 11, documents});
      }
    }
  }
  cases.push_back({{1, 1, 1, 1, 1, 1, true, 0.0, false}, 2, 1, 1, false});
  cases.push_back({{1, 2, 2, 64, 256, 130, true, 0.0, false}, 65, 2, 129, true});  // several tiles
  cases.push_back({{1, 2, 2, 34, 70, 200, false, 0.1, false}, 65, 1, 200, false});
  cases.push_back({{1, 1, 1, 300, 40, 70, true, 0.0, false}, 65, 1, 70, true});  // wide head
  for (const bool bias : {false, true}) {
    for (const double dropout : {0.0, 0.25}) {
      for (const int64_t kv_heads : {1, 2, 4}) {
        cases.push_back(
            {{1, 4, kv_heads, 24, 22, 13, bias, dropout, false}, 37, 3, 11, bias, "llama"});
      }
    }
  }
  cases.push_back({{1, 1, 1, 2, 1, 1, false, 0.0, false}, 2, 1, 1, false, "llama"});
  cases.push_back({{1, 6, 2, 60, 100, 130, false, 0.0, false}, 65, 2, 129, true, "llama"});
  cases.push_back({{1, 2, 1, 136, 70, 200, false, 0.1, false}, 65, 1, 200, false, "llama"});
  cases.back().options.norm_eps = 1e-3;
  cases.back().options.rope = {500.0, 8.0, 1.0, 4.0, 64};  // kept, blended and stretched pairs
  for (const int64_t window : {64, 70, 199}) {             // over several tiles
    cases.push_back(
        {{1, 2, 1, 24, 20, 200, false, 0.1, false}, 65, 2, 200, window == 70, "mistral"});
    cases.back().options.window = window;
  }
  std::ranges::copy(family_cases(), std::back_inserter(cases));
  return cases;
}

class TransformerTest : public testing::TestWithParam<Case> {};

TEST_P(TransformerTest, ForwardAndBackwardEqualAutograd) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = random_units(shape, 5);
  const int64_t count = input.batch * input.tokens * input.options.width;
  const std::vector<double> x = random_values(count, 7), dy = random_values(count, 8);

  const Parameters parameters = reference_parameters(shape, units);
  const at::Tensor leaf = leaf_of(x, {input.batch, input.tokens, input.options.width});
  const at::Tensor expected = reference_transformer(input, parameters, 1, leaf);
  expected.backward(at::tensor(dy, at::kDouble).reshape(expected.sizes()));

  for (const int threads : {1, 2}) {
    Runner<double> runner(shape, input, units, threads);
    Guarded saved(runner.sizes(1).saved_bytes);
    EXPECT_LT(relative_error(runner.forward(1, x, &saved), values_of(expected)), kTolerance);
    const auto result = runner.backward(1, x, saved, dy, {});
    EXPECT_LT(relative_error(result.input_gradient, values_of(leaf.grad())), kTolerance);
    const std::vector<double> gradient = flat_gradient(shape.units[1], parameters);
    for (const ParameterShape& parameter : shape.units[1].parameters) {
      const auto part = [&](const std::vector<double>& flat) {
        const auto begin = flat.begin() + parameter.offset;
        return std::vector<double>(begin, begin + parameter.elements());
      };
      EXPECT_LT(relative_error(part(result.unit_gradient), part(gradient)), kTolerance)
          << parameter.name;
    }
  }
}

TEST_P(TransformerTest, VariantsGiveTheSameBits) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = random_units(shape, 5);
  const int64_t count = input.batch * input.tokens * input.options.width;
  const std::vector<double> x = random_values(count, 7), dy = random_values(count, 8);
  Runner<float> runner(shape, input, units);
  Guarded saved(runner.sizes(1).saved_bytes), stepwise(runner.sizes(1).saved_bytes);
  const std::vector<double> output = runner.forward(1, x, &saved);
  EXPECT_EQ(runner.forward(1, x, nullptr), output) << "keeping nothing";
  EXPECT_EQ(runner.forward(1, x, &stepwise, true), output) << "segment by segment";
  EXPECT_EQ(runner.forward(1, x, nullptr, true), output) << "segment by segment, keeping nothing";
  const auto merged = runner.backward(1, x, saved, dy, {});
  for (const bool step : {false, true}) {
    const auto split = runner.backward(1, x, stepwise, dy, {.split = true, .stepwise = step});
    EXPECT_EQ(split.input_gradient, merged.input_gradient);
    EXPECT_EQ(split.unit_gradient, merged.unit_gradient);
  }
  const auto in_place = runner.backward(1, x, saved, dy, {.in_place = true});
  EXPECT_EQ(in_place.input_gradient, merged.input_gradient);
  EXPECT_EQ(in_place.unit_gradient, merged.unit_gradient);

  Runner<float> two(shape, input, units, 2);
  Guarded other(two.sizes(1).saved_bytes);
  EXPECT_EQ(two.forward(1, x, &other), output) << "two threads";
  EXPECT_EQ(two.backward(1, x, other, dy, {}).unit_gradient, merged.unit_gradient) << "two threads";
}

TEST_P(TransformerTest, AccumulateAddsAndOverwriteForgets) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = random_units(shape, 5);
  const int64_t count = input.batch * input.tokens * input.options.width;
  const std::vector<double> x = random_values(count, 7), dy = random_values(count, 8);
  Runner<double> runner(shape, input, units);
  Guarded saved(runner.sizes(1).saved_bytes);
  runner.forward(1, x, &saved);
  const auto plain = runner.backward(1, x, saved, dy, {});
  for (const bool split : {false, true}) {
    const auto overwritten = runner.backward(1, x, saved, dy, {.split = split, .start = 5.0});
    EXPECT_EQ(overwritten.unit_gradient, plain.unit_gradient);
    auto added =
        runner.backward(1, x, saved, dy, {.split = split, .accumulate = true, .start = 5.0});
    for (double& value : added.unit_gradient) value -= 5.0;
    EXPECT_LT(relative_error(added.unit_gradient, plain.unit_gradient), 1e-10);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, TransformerTest, testing::ValuesIn(block_cases()));

class EndsTest : public testing::TestWithParam<Case> {};

TEST_P(EndsTest, EmbeddingEqualsAutograd) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = random_units(shape, 5);
  const std::vector<double> dy = random_values(input.batch * input.tokens * input.options.width, 8);
  const Parameters parameters = reference_parameters(shape, units);
  const at::Tensor expected = reference_embedding(input, parameters);
  expected.backward(at::tensor(dy, at::kDouble).reshape(expected.sizes()));
  const std::vector<double> gradient = flat_gradient(shape.units[0], parameters);
  for (const int threads : {1, 2}) {
    Runner<double> runner(shape, input, units, threads);
    Guarded saved(0);
    EXPECT_LT(relative_error(runner.forward(0, {}, nullptr), values_of(expected)), kTolerance);
    for (const bool split : {false, true}) {
      const double start = 3.0;
      auto added =
          runner.backward(0, {}, saved, dy, {.split = split, .accumulate = true, .start = start});
      for (double& value : added.unit_gradient) value -= start;
      EXPECT_LT(relative_error(added.unit_gradient, gradient), kTolerance);
      if (input.options.tied_head) continue;  // overwriting is the head's part then
      const auto plain = runner.backward(0, {}, saved, dy, {.split = split, .start = start});
      EXPECT_LT(relative_error(plain.unit_gradient, gradient), kTolerance);
    }
  }
}

TEST_P(EndsTest, HeadEqualsAutograd) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = random_units(shape, 5);
  const std::vector<double> x = random_values(input.batch * input.tokens * input.options.width, 7);
  const Parameters parameters = reference_parameters(shape, units);
  const at::Tensor leaf = leaf_of(x, {input.batch, input.tokens, input.options.width});
  const at::Tensor loss = reference_loss(input, parameters, leaf);
  const double scale = 0.75;
  (loss * scale).backward();
  const auto unit = static_cast<size_t>(shape.blocks.back().unit);
  const std::vector<double> gradient = flat_gradient(shape.units[unit], parameters);
  for (const int threads : {1, 2}) {
    Runner<double> runner(shape, input, units, threads);
    runner.settings.loss_scale = scale;
    const auto alone = runner.head(x, false);
    EXPECT_NEAR(alone.loss, loss.item<double>(), 1e-11 * loss.item<double>());
    const auto result = runner.head(x, true);
    EXPECT_EQ(result.loss, alone.loss);
    EXPECT_EQ(result.count, std::count_if(input.targets.begin(), input.targets.end(),
                                          [](int t) { return t >= 0; }));
    EXPECT_LT(relative_error(result.backward.input_gradient, values_of(leaf.grad())), kTolerance);
    // Overwriting: the head's own parameters forget what was there, in the first chunk only.
    const auto overwritten = runner.head(x, true, false, 9.0);
    for (const ParameterShape& parameter : shape.units[unit].parameters) {
      if (parameter.name == "embedding.position.weight") continue;
      const auto part = [&](const std::vector<double>& flat) {
        const auto begin = flat.begin() + parameter.offset;
        return std::vector<double>(begin, begin + parameter.elements());
      };
      EXPECT_LT(relative_error(part(overwritten.backward.unit_gradient), part(gradient)),
                kTolerance)
          << parameter.name;
    }
    const auto added = runner.head(x, true, true);
    EXPECT_LT(relative_error(added.backward.unit_gradient, gradient), kTolerance);
  }
}

std::vector<Case> end_cases() {
  std::vector<Case> cases;
  for (const bool bias : {false, true}) {
    for (const bool tied : {false, true}) {
      for (const double dropout : {0.0, 0.25}) {
        cases.push_back({{1, 3, 3, 15, 22, 13, bias, dropout, tied}, 37, 3, 11, false});
      }
    }
  }
  cases.push_back({{1, 1, 1, 1, 1, 2, true, 0.0, true}, 2, 1, 2, false});
  for (const bool tied : {false, true})
    cases.push_back({{1, 2, 1, 12, 22, 13, tied, 0.25, tied}, 37, 3, 11, false, "llama"});
  // Vocabulary so large that the head works in several chunks of rows.
  cases.push_back({{1, 1, 1, 2, 4, 150, true, 0.0, true}, 150000, 1, 130, false});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Sizes, EndsTest, testing::ValuesIn(end_cases()));

TEST(RotaryFrequencies, AnOriginalContextOfOneStretchesAllAlike) {
  constexpr int64_t kHeadWidth = 8;
  const std::vector<double> trained = rotary_frequencies({}, kHeadWidth);
  const std::vector<double> stretched = rotary_frequencies({.factor = 4.0,
                                                            .low_frequency_factor = 0.01,
                                                            .high_frequency_factor = 0.02,
                                                            .original_context = 1},
                                                           kHeadWidth);
  for (size_t i = 0; i < trained.size(); ++i) EXPECT_EQ(stretched[i], trained[i] / 4.0);
}

TEST(Blocks, RefuseWhatTheyCannotDo) {
  const Case test_case;
  const ModelShape shape = test_case.shape();
  ReferenceInput input = random_input(test_case, 1);
  input.inputs[4] = 37;
  Runner<float> runner(shape, input, random_units(shape, 2));
  try {
    runner.forward(0, {}, nullptr);
    FAIL() << "token outside the vocabulary accepted";
  } catch (const UserError& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("token 37"), std::string::npos) << message;
    EXPECT_NE(message.find("vocabulary of 37"), std::string::npos) << message;
  }
  runner.input.targets[2] = 40;
  const std::vector<double> x(static_cast<size_t>(input.batch * input.tokens * input.options.width),
                              0.5);
  EXPECT_THROW(runner.head(x, true), UserError);
  runner.settings.dtype = Dtype::kFloat64;
  EXPECT_THROW(runner.model.block(1).forward(runner.call(1), 0, 4), InternalError);
  EXPECT_THROW(runner.model.block(1).forward_backward(runner.call(1)), InternalError);
  EXPECT_THROW(runner.model.block(3).backward(runner.call(3)), InternalError);
  EXPECT_THROW(Model(shape, Dtype::kFloat16), UserError);
}

}  // namespace
}  // namespace strait::model
