#include "strait/model/autograd_block.h"

#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "tests/model/runner.h"

namespace strait::model {
namespace {

/// The hand-written transformer block's mathematics as a LibTorch module.
AutogradFunction transformer_function(const ReferenceInput& input, const UnitShape& unit) {
  return [input, unit](const std::vector<at::Tensor>& values, const std::vector<at::Tensor>& x) {
    Parameters parameters;
    for (size_t i = 0; i < values.size(); ++i) parameters[unit.parameters[i].name] = values[i];
    return reference_transformer(input, parameters, 1, x[0]);
  };
}

class AutogradBlockTest : public testing::Test {
 protected:
  AutogradBlockTest()
      : shape_(gpt2_shape(case_.options, case_.vocabulary)),
        input_(random_input(case_, 3)),
        units_(random_units(shape_, 5)) {}

  std::unique_ptr<AutogradBlock> block() const {
    return std::make_unique<AutogradBlock>(shape_.units[1], form(case_.options.width),
                                           Dtype::kFloat64,
                                           transformer_function(input_, shape_.units[1]));
  }
  AutogradForm form(int64_t width) const {
    return {.input_dims = {input_.tokens, width}, .output_dims = {input_.tokens, width}};
  }

  Case case_;
  ModelShape shape_;
  ReferenceInput input_;
  std::vector<std::vector<double>> units_;
};

TEST_F(AutogradBlockTest, EqualsTheHandWrittenBlock) {
  const int64_t count = input_.batch * input_.tokens * case_.options.width;
  const std::vector<double> x = random_values(count, 7), dy = random_values(count, 8);
  Runner<double> written(shape_, input_, units_), wrapped(shape_, input_, units_);
  wrapped.model.set_block(1, block());
  Guarded saved(written.sizes(1).saved_bytes);
  const std::vector<double> output = written.forward(1, x, &saved);
  EXPECT_LT(relative_error(wrapped.forward(1, x, nullptr), output), 1e-11);
  for (const bool accumulate : {false, true}) {
    for (const bool in_place : {false, true}) {
      const Runner<double>::BackwardOptions options{
          .accumulate = accumulate, .in_place = in_place, .start = 2.0};
      const auto expected = written.backward(1, x, saved, dy, options);
      const auto result = wrapped.backward(1, x, saved, dy, options);
      EXPECT_LT(relative_error(result.input_gradient, expected.input_gradient), 1e-11);
      EXPECT_LT(relative_error(result.unit_gradient, expected.unit_gradient), 1e-11);
    }
  }
}

TEST_F(AutogradBlockTest, UnusedParametersGetZeroGradient) {
  const int64_t width = case_.options.width;
  const int64_t count = input_.batch * input_.tokens * width;
  Runner<double> runner(shape_, input_, units_);
  runner.model.set_block(1, std::make_unique<AutogradBlock>(
                                shape_.units[1], form(width), Dtype::kFloat64,
                                [](const std::vector<at::Tensor>&,
                                   const std::vector<at::Tensor>& x) { return x[0] * 3.0; }));
  Guarded saved(0);
  const std::vector<double> dy = random_values(count, 8);
  const auto result = runner.backward(1, random_values(count, 7), saved, dy, {.start = 4.0});
  EXPECT_EQ(result.unit_gradient, std::vector<double>(result.unit_gradient.size(), 0.0));
  for (size_t i = 0; i < dy.size(); ++i) EXPECT_DOUBLE_EQ(result.input_gradient[i], 3.0 * dy[i]);
}

TEST_F(AutogradBlockTest, RefusesWhatAutogradCannotDo) {
  Runner<double> runner(shape_, input_, units_);
  runner.model.set_block(1, block());
  const Call call = runner.call(1);
  EXPECT_THROW(runner.model.block(1).backward_input(call, 0, 4), UserError);
  EXPECT_THROW(runner.model.block(1).backward_weight(call, 0, 4), UserError);
  EXPECT_THROW(runner.model.block(1).forward_backward(call), UserError);
  EXPECT_THROW(runner.model.block(1).forward_cached(call), UserError);
  runner.model.set_block(1, std::make_unique<AutogradBlock>(
                                shape_.units[1], form(15), Dtype::kFloat64,
                                [](const std::vector<at::Tensor>&,
                                   const std::vector<at::Tensor>& x) { return x[0].sum(); }));
  const std::vector<double> x(static_cast<size_t>(input_.batch * input_.tokens * 15), 1.0);
  EXPECT_THROW(runner.forward(1, x, nullptr), UserError);
}

TEST_F(AutogradBlockTest, MemoryThatIsNotThereIsNoFaultOfTheModule) {
  Runner<double> runner(shape_, input_, units_);
  runner.model.set_block(
      1, std::make_unique<AutogradBlock>(
             shape_.units[1], form(case_.options.width), Dtype::kFloat64,
             [](const std::vector<at::Tensor>&, const std::vector<at::Tensor>&) -> at::Tensor {
               TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory");
             }));
  const int64_t count = input_.batch * input_.tokens * case_.options.width;
  try {
    runner.forward(1, random_values(count, 7), nullptr);
    FAIL() << "accepted";
  } catch (const NothingFits& error) {
    EXPECT_NE(std::string(error.what()).find("train.micro_batch_size"), std::string::npos);
  }
}

TEST(AutogradBlockSizes, AreActivationsAlone) {
  const BlockSizes sizes = autograd_block_sizes(3, 5, 2, 7, Dtype::kFloat64);
  EXPECT_EQ(sizes.input_bytes, 2 * 7 * 3 * 8);
  EXPECT_EQ(sizes.output_bytes, 2 * 7 * 5 * 8);
  EXPECT_EQ(sizes.saved_bytes, 0);
}

}  // namespace
}  // namespace strait::model
