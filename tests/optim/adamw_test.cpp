// The fused update against a plain one in double, and against values that PyTorch computed.
#include "strait/optim/adamw.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "strait/base/errors.h"
#include "tests/optim/inputs.h"
#include "tests/optim/torch_reference.h"

namespace strait::optim {
namespace {

template <class T>
struct State {
  std::vector<T> weights, gradients, first, second;
  AdamWBuffers<T> buffers() { return {weights, gradients, first, second}; }
};

template <class T>
State<T> sample_state(int64_t count) {
  State<T> state{sample_values<T>(count, 1, 1.0), sample_values<T>(count, 2, 0.1),
                 sample_values<T>(count, 3, 0.01), sample_values<T>(count, 4, 0.001)};
  for (T& second : state.second) second = std::abs(second);
  return state;
}

AdamWUpdate sample_update() {
  return {.learning_rate = 1e-2,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .gradient_scale = 0.75,
          .step = 3};
}

/// The formula of the header, one element at a time, in double.
template <class T>
State<double> plain_update(const State<T>& start, const AdamWUpdate& u) {
  State<double> out{{start.weights.begin(), start.weights.end()},
                    {start.gradients.begin(), start.gradients.end()},
                    {start.first.begin(), start.first.end()},
                    {start.second.begin(), start.second.end()}};
  for (size_t i = 0; i < out.weights.size(); ++i) {
    const double g = u.gradient_scale * out.gradients[i];
    out.first[i] = u.beta1 * out.first[i] + (1.0 - u.beta1) * g;
    out.second[i] = u.beta2 * out.second[i] + (1.0 - u.beta2) * g * g;
    const double corrected_first = out.first[i] / (1.0 - std::pow(u.beta1, u.step));
    const double corrected_second = out.second[i] / (1.0 - std::pow(u.beta2, u.step));
    out.weights[i] = out.weights[i] - u.learning_rate * u.weight_decay * out.weights[i] -
                     u.learning_rate * corrected_first / (std::sqrt(corrected_second) + u.eps);
  }
  return out;
}

/// Tolerances in units of the last place of T. No step cancels in `second` (positive terms, 5
/// roundings) or in the direction itself (first, relative to the sizes of its two terms: 5). The
/// weight is the difference of the decayed weight (3 roundings) and learning_rate * direction (12
/// roundings, first's own among them).
template <class T>
void expect_close(const State<T>& actual, const State<double>& wanted, const State<T>& start,
                  const AdamWUpdate& u) {
  const double unit = std::numeric_limits<T>::epsilon();
  for (size_t i = 0; i < actual.weights.size(); ++i) {
    const double first_size = std::abs(start.first[i]) + std::abs(start.gradients[i]);
    ASSERT_NEAR(actual.second[i], wanted.second[i], 5 * unit * wanted.second[i]) << i;
    ASSERT_NEAR(actual.first[i], wanted.first[i], 5 * unit * first_size) << i;
    const double root = std::sqrt(wanted.second[i] / (1.0 - std::pow(u.beta2, u.step))) + u.eps;
    const double step_size =
        u.learning_rate / (1.0 - std::pow(u.beta1, u.step)) * first_size / root;
    ASSERT_NEAR(actual.weights[i], wanted.weights[i],
                unit * (3 * std::abs(start.weights[i]) + 12 * step_size))
        << i;
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

template <class T>
class AdamWTest : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(AdamWTest, ElementTypes);

TYPED_TEST(AdamWTest, EqualsThePlainUpdateAtEveryLength) {
  for (const int64_t length : sample_lengths()) {
    SCOPED_TRACE(length);
    const auto start = sample_state<TypeParam>(length);
    auto state = start;
    adamw_update(state.buffers(), sample_update(), 1);
    expect_close(state, plain_update(start, sample_update()), start, sample_update());
    EXPECT_TRUE(same_bits(state.gradients, start.gradients));
  }
}

TYPED_TEST(AdamWTest, ThreadsDoNotChangeABit) {
  for (const int64_t length : sample_lengths()) {
    auto one = sample_state<TypeParam>(length);
    adamw_update(one.buffers(), sample_update(), 1);
    for (const int threads : {0, 2, 3, 5}) {
      SCOPED_TRACE(::testing::Message() << length << " elements, " << threads << " threads");
      auto many = sample_state<TypeParam>(length);
      adamw_update(many.buffers(), sample_update(), threads);
      EXPECT_TRUE(same_bits(many.weights, one.weights));
      EXPECT_TRUE(same_bits(many.first, one.first));
      EXPECT_TRUE(same_bits(many.second, one.second));
    }
  }
}

TEST(AdamWRounded, IsTheUpdatedWeightInBf16) {
  for (const int64_t length : sample_lengths()) {
    SCOPED_TRACE(length);
    auto plain = sample_state<float>(length), state = plain;
    adamw_update(plain.buffers(), sample_update(), 1);
    std::vector<Bfloat16> rounded(static_cast<size_t>(length), Bfloat16(7.0f));
    auto buffers = state.buffers();
    buffers.rounded = rounded;
    adamw_update(buffers, sample_update(), 2);
    EXPECT_TRUE(same_bits(state.weights, plain.weights));
    for (size_t i = 0; i < rounded.size(); ++i)
      ASSERT_EQ(rounded[i].bits, Bfloat16(plain.weights[i]).bits) << i;
  }
}

TEST(AdamWRounded, NeedsFloatWeightsOfTheSameLength) {
  auto state = sample_state<float>(10);
  std::vector<Bfloat16> rounded(9);
  auto buffers = state.buffers();
  buffers.rounded = rounded;
  EXPECT_THROW(adamw_update(buffers, sample_update(), 1), InternalError);
  auto wide = sample_state<double>(9);
  auto wide_buffers = wide.buffers();
  wide_buffers.rounded = rounded;
  EXPECT_THROW(adamw_update(wide_buffers, sample_update(), 1), InternalError);
}

// Sharded placements update pieces of a unit: each element must come out as in the whole.
TYPED_TEST(AdamWTest, PiecesOfASpanGiveTheBitsOfTheWhole) {
  const int64_t length = 40001;
  auto whole = sample_state<TypeParam>(length);
  adamw_update(whole.buffers(), sample_update(), 1);
  auto pieces = sample_state<TypeParam>(length);
  int64_t begin = 0;
  for (int64_t size = 1; begin < length; size = size * 3 + 1) {
    const int64_t count = std::min(size, length - begin);
    const auto b = pieces.buffers();
    adamw_update(
        AdamWBuffers<TypeParam>{b.weights.subspan(begin, count), b.gradients.subspan(begin, count),
                                b.first_moments.subspan(begin, count),
                                b.second_moments.subspan(begin, count)},
        sample_update(), 1);
    begin += count;
  }
  EXPECT_TRUE(same_bits(pieces.weights, whole.weights));
  EXPECT_TRUE(same_bits(pieces.first, whole.first));
  EXPECT_TRUE(same_bits(pieces.second, whole.second));
}

/// The run of torch_reference.py.
template <class T>
State<T> torch_run() {
  State<T> state;
  for (int i = 0; i < 7; ++i) state.weights.push_back(static_cast<T>((i * 37 % 23 - 11) / 16.0));
  state.first.assign(7, T(0));
  state.second.assign(7, T(0));
  const double rates[] = {0.5, 0.25, 0.125, 0.0625};
  for (int step = 0; step < 4; ++step) {
    state.gradients.clear();
    for (int i = 0; i < 7; ++i) {
      state.gradients.push_back(static_cast<T>(((i * 29 + step * 13) % 31 - 15) / 16.0));
    }
    adamw_update(state.buffers(),
                 {.learning_rate = rates[step],
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .eps = 1e-3,
                  .weight_decay = 0.1,
                  .gradient_scale = 0.5,
                  .step = step + 1},
                 1);
  }
  return state;
}

// Both sides round about ten times per step, four steps, values of order one: 80 units in the last
// place.
TEST(AdamWTorch, EqualsPyTorchInDouble) {
  const auto state = torch_run<double>();
  for (int i = 0; i < 7; ++i) {
    EXPECT_NEAR(state.weights[i], kAdamWWeightsDouble[i], 80 * 2.3e-16) << i;
    EXPECT_NEAR(state.first[i], kAdamWFirstDouble[i], 80 * 2.3e-16) << i;
    EXPECT_NEAR(state.second[i], kAdamWSecondDouble[i], 80 * 2.3e-16) << i;
  }
}

TEST(AdamWTorch, EqualsPyTorchInFloat) {
  const auto state = torch_run<float>();
  for (int i = 0; i < 7; ++i) {
    EXPECT_NEAR(state.weights[i], kAdamWWeightsFloat[i], 80 * 1.2e-7) << i;
    EXPECT_NEAR(state.first[i], kAdamWFirstFloat[i], 80 * 1.2e-7) << i;
    EXPECT_NEAR(state.second[i], kAdamWSecondFloat[i], 80 * 1.2e-7) << i;
  }
}

TEST(AdamW, ZeroGradientAndMomentsOnlyDecay) {
  State<float> state{{2.0f, -4.0f, 8.0f}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}};
  adamw_update(state.buffers(), {.learning_rate = 0.5, .weight_decay = 0.5, .step = 1}, 1);
  EXPECT_EQ(state.weights, (std::vector<float>{1.5f, -3.0f, 6.0f}));
}

TEST(AdamW, NonFiniteGradientStaysInItsElement) {
  auto state = sample_state<float>(37);
  state.gradients[20] = std::numeric_limits<float>::quiet_NaN();
  auto clean = sample_state<float>(37);
  adamw_update(state.buffers(), sample_update(), 1);
  adamw_update(clean.buffers(), sample_update(), 1);
  for (int i = 0; i < 37; ++i) {
    if (i == 20) {
      EXPECT_TRUE(std::isnan(state.weights[i]));
    } else {
      EXPECT_EQ(state.weights[i], clean.weights[i]) << i;
    }
  }
}

TEST(AdamW, RefusesUnequalLengthsAndStepZero) {
  auto state = sample_state<float>(8);
  state.first.resize(7);
  EXPECT_THROW(adamw_update(state.buffers(), sample_update(), 1), InternalError);
  auto whole = sample_state<float>(8);
  auto update = sample_update();
  update.step = 0;
  EXPECT_THROW(adamw_update(whole.buffers(), update, 1), InternalError);
}

}  // namespace
}  // namespace strait::optim
