// Blocks in ATen operators against the hand-written ones, on the processor.
#include <gtest/gtest.h>

#include <cmath>
#include "strait/base/errors.h"

#include "strait/model/tensor_blocks.h"
#include "strait/tensor/host_device.h"
#include "tests/model/runner.h"

namespace strait::model {
namespace {

// fp64: sums of some hundred terms in another order.
constexpr double kExact = 1e-11;

std::vector<Case> tensor_cases() {
  std::vector<Case> cases;
  for (const double dropout : {0.0, 0.25})
    for (const bool documents : {false, true})
      for (const bool tied : {false, true})
        cases.push_back({{2, 3, 3, 15, 22, 13, tied, dropout, tied}, 37, 3, 11, documents});
  for (const int64_t kv_heads : {1, 2, 4})
    for (const double dropout : {0.0, 0.25})
      cases.push_back({{2, 4, kv_heads, 24, 22, 13, kv_heads == 2, dropout, kv_heads == 1},
                       37,
                       3,
                       11,
                       kv_heads == 4,
                       "llama"});
  cases.push_back({{1, 1, 1, 2, 1, 1, true, 0.0, false}, 2, 1, 1, false});
  cases.push_back({{1, 2, 1, 136, 70, 200, false, 0.1, false}, 65, 1, 200, false, "llama"});
  cases.back().options.norm_eps = 1e-3;
  cases.back().options.rope = {500.0, 8.0, 1.0, 4.0, 64};
  return cases;
}

class TensorBlocks : public testing::TestWithParam<Case> {
 protected:
  template <class T>
  std::unique_ptr<Runner<T>> runner(const std::vector<std::vector<double>>& units, bool tensors) {
    auto made = std::make_unique<Runner<T>>(shape_, input_, units);
    made->settings.loss_scale = 0.75;
    if (tensors) use_tensor_blocks(made->model, device_, Runner<T>::kDtype);
    return made;
  }

  tensor::HostDevice device_;
  ModelShape shape_ = GetParam().shape();
  ReferenceInput input_ = random_input(GetParam(), 3);
  std::vector<std::vector<double>> units_ = random_units(shape_, 5);
};

TEST_P(TensorBlocks, AStepEqualsTheHandWrittenOne) {
  const auto want = runner<double>(units_, false)->step(),
             got = runner<double>(units_, true)->step();
  EXPECT_NEAR(got.loss, want.loss, kExact * want.loss);
  for (size_t unit = 0; unit < units_.size(); ++unit)
    for (const ParameterShape& parameter : shape_.units[unit].parameters) {
      const auto part = [&](const std::vector<double>& flat) {
        const auto begin = flat.begin() + parameter.offset;
        return std::vector<double>(begin, begin + parameter.elements());
      };
      EXPECT_LT(relative_error(part(got.gradients[unit]), part(want.gradients[unit])), kExact)
          << parameter.name;
    }
}

TEST_P(TensorBlocks, GradientsAreAddedWhenAsked) {
  const auto tensors = runner<double>(units_, true);
  const auto plain = tensors->step();
  auto added = tensors->step(true, 5.0);
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    for (double& value : added.gradients[unit]) value -= 5.0;
    EXPECT_LT(relative_error(added.gradients[unit], plain.gradients[unit]), 1e-9) << unit;
  }
}

TEST_P(TensorBlocks, ABlockEqualsTheHandWrittenOne) {
  const int64_t count = input_.batch * input_.tokens * input_.options.width;
  const std::vector<double> x = random_values(count, 7), dy = random_values(count, 8);
  const auto native = runner<double>(units_, false), tensors = runner<double>(units_, true);
  Guarded native_saved(native->sizes(1).saved_bytes), saved(native->sizes(1).saved_bytes);
  const auto want = native->forward(1, x, &native_saved);
  EXPECT_LT(relative_error(tensors->forward(1, x, nullptr), want), kExact) << "keeping nothing";
  EXPECT_LT(relative_error(tensors->forward(1, x, &saved, true), want), kExact) << "stepwise";
  const auto gradients = native->backward(1, x, native_saved, dy, {});
  for (Guarded* kept : {&saved, &native_saved}) {  // either may go on from what the other kept
    const auto result = tensors->backward(1, x, *kept, dy, {.in_place = kept == &saved});
    EXPECT_LT(relative_error(result.input_gradient, gradients.input_gradient), kExact);
    EXPECT_LT(relative_error(result.unit_gradient, gradients.unit_gradient), kExact);
  }
}

TEST_P(TensorBlocks, LossAloneIsTheSame) {
  const int64_t count = input_.batch * input_.tokens * input_.options.width;
  const std::vector<double> x = random_values(count, 7);
  const auto want = runner<double>(units_, false)->head(x, false);
  const auto got = runner<double>(units_, true)->head(x, false);
  EXPECT_NEAR(got.loss, want.loss, kExact * want.loss);
  EXPECT_EQ(got.count, want.count);
}

/// Logits of the whole text fed in pieces, by blocks with caches.
std::vector<double> generate(Runner<double>& runner, const std::vector<int64_t>& pieces) {
  const ModelShape& shape = runner.model.shape();
  const int64_t batch = runner.input.batch, capacity = shape.options.context;
  const auto last = static_cast<int64_t>(shape.blocks.size()) - 1;
  std::vector<std::vector<char>> caches(
      static_cast<size_t>(last + 1),
      std::vector<char>(static_cast<size_t>(cache_bytes(shape, batch, capacity, Dtype::kFloat64))));
  std::vector<double> logits(static_cast<size_t>(batch * shape.vocabulary));
  int64_t position = 0;
  for (const int64_t piece : pieces) {
    std::vector<int32_t> tokens;
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = 0; t < piece; ++t)
        tokens.push_back(
            runner.input.inputs[static_cast<size_t>(b * runner.input.tokens + position + t)]);
    const Batch part{batch, piece, tokens.data(), nullptr, nullptr, nullptr};
    std::vector<double> x, y;
    for (int64_t block = 0; block <= last; ++block) {
      y.assign(static_cast<size_t>(batch * piece * shape.options.width), 0.0);
      const BlockSizes sizes = block_sizes(shape, block, batch, piece, Dtype::kFloat64);
      std::vector<char> workspace(static_cast<size_t>(sizes.forward_workspace_bytes));
      Call call = runner.call(block);
      call.batch = &part;
      call.input = x.data();
      call.output = block < last ? y.data() : nullptr;
      call.logits = block < last ? nullptr : logits.data();
      call.workspace = workspace.data();
      call.cache = caches[static_cast<size_t>(block)].data();
      call.cache_capacity = capacity;
      call.position = position;
      runner.model.block(block).forward_cached(call);
      x = y;
    }
    position += piece;
  }
  return logits;
}

TEST_P(TensorBlocks, GenerationEqualsTheHandWrittenOne) {
  if (input_.tokens < 4) return;
  const auto native = runner<double>(units_, false), tensors = runner<double>(units_, true);
  native->settings.training = tensors->settings.training = false;
  const auto want = generate(*native, {input_.tokens});
  EXPECT_LT(relative_error(generate(*tensors, {input_.tokens}), want), kExact);
  EXPECT_LT(relative_error(generate(*tensors, {input_.tokens - 3, 2, 1}), want), kExact);
}

// One rounding to bf16 is at most 2^-8; as tests/model/bf16_test.cpp counts them, and as many again
// for the stored values between ATen's operators.
TEST_P(TensorBlocks, Bfloat16StaysWithinItsRoundings) {
  if (input_.options.width < 15) return;
  auto rounded = [](std::vector<double> values, double scale) {
    for (double& value : values) value = Bfloat16(value * scale);
    return values;
  };
  const double scale = std::min(1.0, 4.0 / std::sqrt(static_cast<double>(input_.options.width)));
  for (auto& unit : units_) unit = rounded(unit, scale);
  const int64_t count = input_.batch * input_.tokens * input_.options.width;
  const auto x = rounded(random_values(count, 7), 1.0), dy = rounded(random_values(count, 8), 1.0);
  const auto exact = runner<double>(units_, false);
  const auto tensors = runner<Bfloat16>(units_, true);
  Guarded exact_saved(exact->sizes(1).saved_bytes), saved(tensors->sizes(1).saved_bytes);
  const auto want = exact->forward(1, x, &exact_saved);
  EXPECT_LT(relative_error(tensors->forward(1, x, &saved), want), 18 * 0x1p-8);
  const auto gradients = exact->backward(1, x, exact_saved, dy, {});
  const auto result = tensors->backward(1, x, saved, dy, {});
  EXPECT_LT(relative_error(result.input_gradient, gradients.input_gradient), 36 * 0x1p-8);
  EXPECT_LT(relative_error(result.unit_gradient, gradients.unit_gradient), 36 * 0x1p-8);
  const auto head = exact->head(x, true);
  const auto narrow = tensors->head(x, true);
  EXPECT_NEAR(narrow.loss, head.loss, 4 * 0x1p-8 * head.loss);
  EXPECT_LT(relative_error(narrow.backward.unit_gradient, head.backward.unit_gradient),
            36 * 0x1p-8);
}

INSTANTIATE_TEST_SUITE_P(Sizes, TensorBlocks, testing::ValuesIn(tensor_cases()));
INSTANTIATE_TEST_SUITE_P(Families, TensorBlocks, testing::ValuesIn(family_cases()));

TEST(TensorBlocksRefuse, ABackwardInTwoHalves) {
  tensor::HostDevice device;
  const Case small;
  Runner<float> runner(small.shape(), random_input(small, 1), random_units(small.shape(), 2));
  use_tensor_blocks(runner.model, device, Dtype::kFloat32);
  for (const int64_t block : {0, 1})
    EXPECT_THROW(runner.model.block(block).backward_input(runner.call(block), 0, 1), UserError);
}

}  // namespace
}  // namespace strait::model
