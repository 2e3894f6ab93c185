// Whole models: against autograd, against finite differences, and initial values.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/model/runner.h"

namespace strait::model {
namespace {

class WholeModelTest : public testing::TestWithParam<Case> {};

TEST_P(WholeModelTest, GradientsEqualAutograd) {
  const ModelShape shape = GetParam().shape();
  const ReferenceInput input = random_input(GetParam(), 3);
  const auto units = random_units(shape, 5);
  const Parameters parameters = reference_parameters(shape, units);
  const at::Tensor loss = reference_model_loss(input, parameters);
  loss.backward();
  Runner<double> runner(shape, input, units, 2);
  const auto result = runner.step(false, 9.0);
  EXPECT_NEAR(result.loss, loss.item<double>(), 1e-11 * loss.item<double>());
  for (size_t unit = 0; unit < shape.units.size(); ++unit) {
    const std::vector<double> expected = flat_gradient(shape.units[unit], parameters);
    EXPECT_LT(relative_error(result.gradients[unit], expected), 1e-10) << shape.units[unit].name;
  }
  // fp32: 2^-24 per operation, amplified by the depth of the chain and weights of about 0.3.
  Runner<float> single(shape, input, units, 1);
  const auto rough = single.step();
  EXPECT_NEAR(rough.loss, result.loss, 2e-5 * result.loss);
  for (size_t unit = 0; unit < shape.units.size(); ++unit) {
    EXPECT_LT(relative_error(rough.gradients[unit], result.gradients[unit]), 2e-4)
        << shape.units[unit].name;
  }
}

std::vector<Case> model_cases() {
  std::vector<Case> cases;
  for (const bool tied : {false, true}) {
    for (const double dropout : {0.0, 0.2}) {
      cases.push_back({{3, 3, 3, 15, 22, 13, tied, dropout, tied}, 37, 3, 11, dropout > 0.0});
      cases.push_back(
          {{3, 4, 2, 24, 22, 13, false, dropout, tied}, 37, 3, 11, dropout > 0.0, "llama"});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Sizes, WholeModelTest, testing::ValuesIn(model_cases()));
INSTANTIATE_TEST_SUITE_P(Families, WholeModelTest, testing::ValuesIn(family_cases()));

class DifferencesTest : public testing::TestWithParam<Case> {};

TEST_P(DifferencesTest, GradientEqualsFiniteDifferences) {
  const Case& test_case = GetParam();
  const ModelShape shape = test_case.shape();
  const ReferenceInput input = random_input(test_case, 3);
  const auto units = random_units(shape, 5);
  const auto gradient = Runner<double>(shape, input, units).step().gradients;
  // Central differences: error h^2 f''' / 6 + eps |f| / h, least near h = 1e-5: about 1e-9
  // absolute.
  const double h = 1e-5;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const std::vector<double> direction =
        random_values(static_cast<int64_t>(units[unit].size()), 40 + unit);
    double expected = 0;
    for (size_t i = 0; i < direction.size(); ++i) expected += direction[i] * gradient[unit][i];
    const auto loss_at = [&](double step) {
      auto moved = units;
      for (size_t i = 0; i < direction.size(); ++i) moved[unit][i] += step * direction[i];
      return Runner<double>(shape, input, moved).step().loss;
    };
    const double measured = (loss_at(h) - loss_at(-h)) / (2 * h);
    EXPECT_NEAR(measured, expected, 2e-6 * (1.0 + std::abs(expected))) << shape.units[unit].name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, DifferencesTest,
    testing::Values(Case{{2, 2, 2, 6, 10, 7, true, 0.0, true}, 11, 2, 7, true},
                    Case{{2, 4, 2, 8, 10, 7, false, 0.0, true}, 11, 2, 7, true, "llama"},
                    Case{{2, 2, 1, 8, 10, 7, true, 0.0, false}, 11, 2, 7, false, "llama"}));

TEST(WholeModel, EvaluationHasNoDropout) {
  Case test_case;
  test_case.options.dropout = 0.3;
  const ModelShape shape = test_case.shape();
  ReferenceInput input = random_input(test_case, 3);
  const auto units = random_units(shape, 5);
  const double with_dropout = Runner<double>(shape, input, units).step().loss;
  input.training = false;
  const double without = Runner<double>(shape, input, units).step().loss;
  EXPECT_NE(with_dropout, without);
  const Parameters parameters = reference_parameters(shape, units);
  EXPECT_NEAR(without, reference_model_loss(input, parameters).item<double>(), 1e-10 * without);
}

/// Family and tokens per piece.
class CachedTest : public testing::TestWithParam<std::tuple<const char*, int64_t>> {};

/// Feeds the sequences in pieces and compares with the full logits of every position.
TEST_P(CachedTest, GenerationEqualsFullRecompute) {
  const auto [family, length] = GetParam();
  Case test_case{{2, 3, 3, 15, 22, 80, true, 0.0, true}, 37, 3, 75, false};
  if (family == std::string("llama"))
    test_case = {{2, 6, 2, 24, 22, 80, false, 0.0, true}, 37, 3, 75, false, "llama"};
  const ModelShape shape = test_case.shape();
  const ReferenceInput input = random_input(test_case, 3);
  const auto units = random_units(shape, 5);
  const Parameters parameters = reference_parameters(shape, units);
  at::Tensor x = reference_embedding(input, parameters);
  for (int64_t layer = 0; layer < 2; ++layer)
    x = reference_transformer(input, parameters, layer + 1, x);
  const at::Tensor expected = reference_logits(input, parameters, x).contiguous();

  Runner<double> runner(shape, input, units, 2);
  const int64_t capacity = 78;
  std::vector<std::unique_ptr<Guarded>> caches;
  for (int layer = 0; layer < 2; ++layer) {
    caches.push_back(std::make_unique<Guarded>(cache_bytes(shape, 3, capacity, Dtype::kFloat64)));
  }
  for (int64_t position = 0; position < 75; position += length) {
    const int64_t tokens = std::min<int64_t>(length, 75 - position);
    std::vector<int32_t> piece;
    for (int64_t b = 0; b < 3; ++b) {
      const auto from = input.inputs.begin() + b * 75 + position;
      piece.insert(piece.end(), from, from + tokens);
    }
    runner.batch = {3, tokens, piece.data(), nullptr, nullptr, nullptr};
    runner.settings.training = false;
    runner.input.tokens = tokens;
    Guarded first(runner.sizes(0).output_bytes), second(runner.sizes(0).output_bytes);
    Guarded logits(3 * 37 * 8);
    for (int64_t block = 0; block < 4; ++block) {
      Guarded workspace(runner.sizes(block).forward_workspace_bytes);
      Call step = runner.call(block);
      step.position = position;
      step.input = (block % 2 == 0 ? second : first).data();
      step.output = (block % 2 == 0 ? first : second).data();
      step.workspace = workspace.data();
      step.cache =
          block == 1 || block == 2 ? caches[static_cast<size_t>(block - 1)]->data() : nullptr;
      step.cache_capacity = capacity;
      step.logits = logits.data();
      runner.model.block(block).forward_cached(step);
      EXPECT_TRUE(workspace.intact());
    }
    EXPECT_TRUE(first.intact() && second.intact() && logits.intact());
    for (int64_t b = 0; b < 3; ++b) {
      const double* row = expected.data_ptr<double>() + (b * 75 + position + tokens - 1) * 37;
      EXPECT_LT(relative_error(widen(logits.as<double>() + b * 37, 37), {row, row + 37}), 1e-11)
          << position << " sequence " << b;
    }
  }
  EXPECT_TRUE(caches[0]->intact() && caches[1]->intact());
}
INSTANTIATE_TEST_SUITE_P(Pieces, CachedTest,
                         testing::Combine(testing::Values("gpt2", "llama"),
                                          testing::Values(1, 7, 75)));

TEST(Initialize, DependsOnlyOnSeedNameAndElement) {
  const ModelShape shape = gpt2_shape({2, 2, 2, 10, 13, 9, true, 0.0, true}, 31);
  const ModelShape llama = llama_shape({1, 2, 1, 12, 13, 9, false, 0.0, false}, 31);
  std::vector<UnitShape> units = shape.units;
  units.insert(units.end(), llama.units.begin(), llama.units.end());
  for (const UnitShape& unit : units) {
    std::vector<double> whole(static_cast<size_t>(unit.elements));
    initialize(unit, 5, Dtype::kFloat64, {{0, unit.elements, 1, 0}}, whole.data());
    for (const int64_t piece : {1, 7, 64}) {
      for (int64_t begin = 0; begin < unit.elements; begin += piece) {
        const int64_t end = std::min(unit.elements, begin + piece);
        std::vector<double> part(static_cast<size_t>(end - begin));
        std::vector<float> single(part.size());
        initialize(unit, 5, Dtype::kFloat64, {{begin, end - begin, 1, 0}}, part.data());
        initialize(unit, 5, Dtype::kFloat32, {{begin, end - begin, 1, 0}}, single.data());
        for (int64_t i = begin; i < end; ++i) {
          const auto at = static_cast<size_t>(i - begin);
          ASSERT_EQ(part[at], whole[static_cast<size_t>(i)]) << unit.name << " " << i;
          ASSERT_EQ(single[at], static_cast<float>(part[at])) << unit.name << " " << i;
        }
      }
    }
    std::vector<double> other(whole.size());
    initialize(unit, 6, Dtype::kFloat64, {{0, unit.elements, 1, 0}}, other.data());
    EXPECT_NE(whole, other);
  }
}

TEST(Initialize, HasTheStatedMomentsAndConstants) {
  const ModelShape shape = gpt2_shape({8, 2, 2, 128, 512, 64, true, 0.0, true}, 1000);
  const UnitShape& unit = shape.units[1];
  std::vector<double> values(static_cast<size_t>(unit.elements));
  initialize(unit, 1, Dtype::kFloat64, {{0, unit.elements, 1, 0}}, values.data());
  for (const ParameterShape& parameter : unit.parameters) {
    const auto n = static_cast<double>(parameter.elements());
    double mean = 0, square = 0, fourth = 0;
    for (int64_t i = 0; i < parameter.elements(); ++i) {
      const double value = values[static_cast<size_t>(parameter.offset + i)];
      mean += value / n;
      square += value * value / n;
      fourth += value * value * value * value / n;
    }
    if (parameter.initial == Initial::kNormal) {
      const double deviation = parameter.standard_deviation;
      // Five standard errors of each moment of n independent normals.
      EXPECT_NEAR(mean, 0.0, 5 * deviation / std::sqrt(n)) << parameter.name;
      EXPECT_NEAR(square / (deviation * deviation), 1.0, 5 * std::sqrt(2.0 / n)) << parameter.name;
      EXPECT_NEAR(fourth / std::pow(deviation, 4), 3.0, 5 * std::sqrt(96.0 / n)) << parameter.name;
    } else {
      EXPECT_EQ(square, parameter.initial == Initial::kOnes ? mean : 0.0) << parameter.name;
    }
  }
}

}  // namespace
}  // namespace strait::model
