// The fused update against a plain one in double, and against values that PyTorch computed.
#include "strait/optim/sgd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "strait/base/errors.h"
#include "tests/optim/inputs.h"
#include "tests/optim/torch_reference.h"

namespace strait::optim {
namespace {

template <class T>
class SgdTest : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(SgdTest, ElementTypes);

// At most eight roundings of the listed sizes: scale, momentum product and sum, decay (3), update
// (2).
TYPED_TEST(SgdTest, EqualsThePlainUpdateAtEveryLengthAndThreadCount) {
  const double unit = std::numeric_limits<TypeParam>::epsilon();
  const SgdUpdate u{
      .learning_rate = 0.05, .momentum = 0.9, .weight_decay = 0.1, .gradient_scale = 0.7};
  for (const int64_t length : sample_lengths()) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(::testing::Message() << length << " elements, " << threads << " threads");
      auto weights = sample_values<TypeParam>(length, 1, 1.0);
      auto momentum = sample_values<TypeParam>(length, 3, 0.2);
      const auto gradients = sample_values<TypeParam>(length, 2, 0.1);
      const auto old_weights = weights, old_momentum = momentum;
      sgd_update(SgdBuffers<TypeParam>{weights, gradients, momentum}, u, threads);
      for (int64_t i = 0; i < length; ++i) {
        const double wanted = u.momentum * old_momentum[i] + u.gradient_scale * gradients[i];
        const double size = std::abs(old_momentum[i]) + std::abs(gradients[i]);
        ASSERT_NEAR(momentum[i], wanted, 4 * unit * size) << i;
        const double w = old_weights[i] - u.learning_rate * u.weight_decay * old_weights[i];
        ASSERT_NEAR(weights[i], w - u.learning_rate * wanted,
                    unit * (3 * std::abs(w) + 8 * u.learning_rate * size))
            << i;
      }
    }
  }
}

TEST(SgdRounded, IsTheUpdatedWeightInBf16) {
  const SgdUpdate update{.learning_rate = 0.05, .momentum = 0.9};
  for (const int64_t length : sample_lengths()) {
    SCOPED_TRACE(length);
    const auto gradients = sample_values<float>(length, 2, 0.1);
    auto weights = sample_values<float>(length, 1, 1.0), plain = weights;
    auto momentum = sample_values<float>(length, 3, 0.2), plain_momentum = momentum;
    std::vector<Bfloat16> rounded(static_cast<size_t>(length), Bfloat16(7.0f));
    sgd_update(SgdBuffers<float>{plain, gradients, plain_momentum}, update, 1);
    sgd_update(SgdBuffers<float>{weights, gradients, momentum, rounded}, update, 2);
    EXPECT_EQ(weights, plain);
    EXPECT_EQ(momentum, plain_momentum);
    for (size_t i = 0; i < rounded.size(); ++i)
      ASSERT_EQ(rounded[i].bits, Bfloat16(plain[i]).bits) << i;
  }
}

TYPED_TEST(SgdTest, WithoutMomentumNeedsNoBuffer) {
  std::vector<TypeParam> weights = {1, 2, 3};
  const std::vector<TypeParam> gradients = {2, 4, 8};
  sgd_update(SgdBuffers<TypeParam>{weights, gradients, {}},
             {.learning_rate = 0.25, .momentum = 0.0, .weight_decay = 0.0, .gradient_scale = 0.5},
             1);
  EXPECT_EQ(weights, (std::vector<TypeParam>{0.75, 1.5, 2}));
}

// Both sides round about six times per step, four steps, values of order one: 48 units in the last
// place.
TYPED_TEST(SgdTest, EqualsPyTorch) {
  constexpr bool is_double = sizeof(TypeParam) == 8;
  std::vector<TypeParam> weights, momentum(7), gradients(7);
  for (int i = 0; i < 7; ++i) weights.push_back((i * 37 % 23 - 11) / 16.0);
  const double rates[] = {0.5, 0.25, 0.125, 0.0625};
  for (int step = 0; step < 4; ++step) {
    for (int i = 0; i < 7; ++i) gradients[i] = ((i * 29 + step * 13) % 31 - 15) / 16.0;
    sgd_update(SgdBuffers<TypeParam>{weights, gradients, momentum},
               {.learning_rate = rates[step],
                .momentum = 0.75,
                .weight_decay = 0.125,
                .gradient_scale = 0.5},
               1);
  }
  const double tolerance = 48 * std::numeric_limits<TypeParam>::epsilon();
  for (int i = 0; i < 7; ++i) {
    EXPECT_NEAR(weights[i], is_double ? kSgdWeightsDouble[i] : kSgdWeightsFloat[i], tolerance);
    EXPECT_NEAR(momentum[i], is_double ? kSgdMomentumDouble[i] : kSgdMomentumFloat[i], tolerance);
  }
}

TEST(Sgd, RefusesUnequalLengths) {
  std::vector<float> weights(4), gradients(4), momentum(3);
  EXPECT_THROW(sgd_update(SgdBuffers<float>{weights, gradients, momentum}, {}, 1), InternalError);
}

}  // namespace
}  // namespace strait::optim
