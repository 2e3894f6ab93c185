// The kernels of Llama's blocks against plain references in long double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "strait/base/random.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/norm.h"
#include "strait/kernel/rope.h"
#include "strait/kernel/swiglu.h"
#include "tests/kernel/edge_vector.h"
#include "tests/kernel/targets.h"

namespace strait::kernel {
namespace {

using Real = long double;

template <class T>
EdgeVector<T> random(int64_t count, uint64_t seed) {
  const RandomStream stream(seed, "test.llama");
  EdgeVector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(stream.normal(i));
  return values;
}

/// About 30 roundings per result of these short sums, as a share of the largest value.
template <class T>
void expect_near(const EdgeVector<T>& got, const std::vector<Real>& expected, const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  Real scale = 1;
  for (const Real value : expected) scale = std::max(scale, std::abs(value));
  const Real limit = 30 * static_cast<Real>(std::numeric_limits<T>::epsilon()) * scale;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_LE(std::abs(static_cast<Real>(got[i]) - expected[i]), limit) << what << " element " << i;
}

template <class T>
class LlamaKernelTest : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(LlamaKernelTest, Elements);

template <class T>
struct RmsCase {
  int64_t rows, columns;
  EdgeVector<T> x, weight, gradient, residual;
  T from = 0;
};

/// out = x s (from + w) with s = (mean(x^2) + eps)^(-1/2), and the gradients by the chain rule.
template <class T>
void check_rms_norm(const RmsCase<T>& c) {
  const double epsilon = 0.125;  // large enough to matter
  const int64_t rows = c.rows, columns = c.columns;
  EdgeVector<T> rstd(rows), out(rows * columns), again(out.size()), dx(out.size());
  layer_norm<T>({rows, columns, c.x.data(), c.weight.data(), nullptr, nullptr, rstd.data(),
                 out.data(), epsilon, nullptr, c.from});
  layer_norm_again<T>({rows, columns, c.x.data(), c.weight.data(), nullptr, nullptr, rstd.data(),
                       again.data(), 0.0, nullptr, c.from});
  EXPECT_EQ(out, again);
  layer_norm_backward<T>({rows, columns, c.x.data(), nullptr, rstd.data(), c.weight.data(),
                          c.gradient.data(), c.residual.data(), dx.data(), c.from});
  EdgeVector<T> dw(columns, T{2});
  layer_norm_parameters<T>({rows, columns, 0, columns, c.x.data(), nullptr, rstd.data(),
                            c.gradient.data(), dw.data(), nullptr, true});
  std::vector<Real> want(out.size()), want_dx(out.size()), want_dw(columns, 2);
  for (int64_t r = 0; r < rows; ++r) {
    Real square = 0, inner = 0;
    for (int64_t i = r * columns; i < (r + 1) * columns; ++i)
      square += static_cast<Real>(c.x[i]) * c.x[i] / static_cast<Real>(columns);
    const Real s = 1 / std::sqrt(square + epsilon);
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t i = r * columns + k;
      const Real factor = static_cast<Real>(c.from) + c.weight[k];
      want[i] = c.x[i] * s * factor;
      want_dw[k] += c.gradient[i] * s * c.x[i];
      inner += c.gradient[i] * factor * c.x[i];
    }
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t i = r * columns + k;
      want_dx[i] = c.residual[i] + s * c.gradient[i] * (static_cast<Real>(c.from) + c.weight[k]) -
                   s * s * s * c.x[i] * inner / static_cast<Real>(columns);
    }
  }
  expect_near(out, want, "out");
  expect_near(dx, want_dx, "dx");
  expect_near(dw, want_dw, "weight");
}

TYPED_TEST(LlamaKernelTest, RmsNormAndItsGradients) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t columns : {1, 2, 7, 16, 33, 100})
      for (const T from : {T{0}, T{1}})
        check_rms_norm<T>({5, columns, random<T>(5 * columns, 1), random<T>(columns, 2),
                           random<T>(5 * columns, 3), random<T>(5 * columns, 4), from});
  });
}

TYPED_TEST(LlamaKernelTest, RotateTurnsPairsAndBack) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t half : {1, 3, 8, 16, 37, 64}) {
      const int64_t heads = 3, width = 2 * half;
      EdgeVector<T> cosines(half), sines(half);
      for (int64_t i = 0; i < half; ++i) {
        cosines[i] = static_cast<T>(std::cos(0.3 * static_cast<double>(i)));
        sines[i] = static_cast<T>(std::sin(0.3 * static_cast<double>(i)));
      }
      const EdgeVector<T> x = random<T>(heads * width + 1, 1);
      std::vector<Real> turned(x.begin(), x.end());
      for (int64_t head = 0; head < heads; ++head)
        for (int64_t i = 0; i < half; ++i) {
          const Real a = x[head * width + i], b = x[head * width + half + i];
          turned[head * width + i] = a * cosines[i] - b * sines[i];
          turned[head * width + half + i] = b * cosines[i] + a * sines[i];
        }
      EdgeVector<T> y = x;
      rotate<T>({heads, width, cosines.data(), sines.data(), false, y.data()});
      expect_near(y, turned, "turned");
      EXPECT_EQ(y.back(), x.back()) << "behind the heads";
      rotate<T>({heads, width, cosines.data(), sines.data(), true, y.data()});
      expect_near(y, std::vector<Real>(x.begin(), x.end()), "back");
    }
  });
}

/// GELU's tanh form, by the tanh; its slope by central differences of long doubles.
Real tanh_gelu(Real x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(Real{-1})) * (x + 0.044715L * x * x * x)));
}

TYPED_TEST(LlamaKernelTest, GegluAndItsGradients) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t columns : {1, 5, 16, 33}) {
      const int64_t rows = 3;
      const EdgeVector<T> x = random<T>(rows * 2 * columns, 1), dy = random<T>(rows * columns, 2);
      EdgeVector<T> out(rows * columns), again = dy, dx(x.size()), in_place = x;
      swiglu<T>({rows, columns, x.data(), out.data(), columns, Gate::kGelu});
      swiglu_backward<T>({rows, columns, x.data(), again.data(), dx.data(), Gate::kGelu});
      EXPECT_EQ(out, again);
      swiglu<T>({rows, columns, in_place.data(), in_place.data(), 2 * columns, Gate::kGelu});
      std::vector<Real> want(out.size()), want_dx(x.size());
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          const Real gate = x[r * 2 * columns + c], up = x[(r * 2 + 1) * columns + c];
          const Real g = dy[r * columns + c], step = 1e-6L;
          want[r * columns + c] = tanh_gelu(gate) * up;
          want_dx[r * 2 * columns + c] =
              g * up * (tanh_gelu(gate + step) - tanh_gelu(gate - step)) / (2 * step);
          want_dx[(r * 2 + 1) * columns + c] = g * tanh_gelu(gate);
          EXPECT_EQ(in_place[r * 2 * columns + c], out[r * columns + c]);
        }
      expect_near(out, want, "out");
      // Errors of the differences stay below 1e-11.
      for (size_t i = 0; i < dx.size(); ++i)
        EXPECT_NEAR(dx[i], static_cast<double>(want_dx[i]),
                    1e-11 + 60 * static_cast<double>(std::numeric_limits<T>::epsilon()))
            << i;
    }
  });
}

/// A query of one key and a query of two: the share is the logistic function of the difference.
TYPED_TEST(LlamaKernelTest, ScoresAreScaledAsTheCallSays) {
  using T = TypeParam;
  on_every_target([] {
    const EdgeVector<T> q = {1, 2, 1, 2}, k = {3, 1, 1, 4}, v = {0, 0, 1, 2};
    for (const double scale : {0.0, 0.3}) {
      const Real factor = scale > 0 ? scale : 1 / std::sqrt(Real{2});
      EdgeVector<T> out(4), sums(2), dq(4), dk(4), dv(4), delta(2);
      AttentionCall<T> call{.queries = 2,
                            .head_width = 2,
                            .q = q.data(),
                            .q_stride = 2,
                            .k = k.data(),
                            .v = v.data(),
                            .kv_stride = 2,
                            .out = out.data(),
                            .out_stride = 2,
                            .log_sum_exp = sums.data(),
                            .scale = scale};
      attention(call);
      const Real share = 1 / (1 + std::exp(factor * (5 - 9)));  // scores 5 and 9
      EXPECT_NEAR(out[2], static_cast<double>(share), 1e-6);
      EXPECT_NEAR(out[3], static_cast<double>(2 * share), 1e-6);
      const EdgeVector<T> dout = {0, 0, 1, 0};
      AttentionBackwardCall<T> back{.forward = call,
                                    .out_gradient = dout.data(),
                                    .out_gradient_stride = 2,
                                    .dq = dq.data(),
                                    .dk = dk.data(),
                                    .dv = dv.data(),
                                    .gradient_stride = 2,
                                    .delta = delta.data()};
      attention_backward(back);
      // dq = scale share (1 - share) (k1 - k0).
      EXPECT_NEAR(dq[2], static_cast<double>(factor * share * (1 - share) * -2), 1e-6);
      EXPECT_NEAR(dq[3], static_cast<double>(factor * share * (1 - share) * 3), 1e-6);
    }
  });
}

TYPED_TEST(LlamaKernelTest, SwigluAndItsGradients) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t columns : {1, 5, 16, 33}) {
      const int64_t rows = 3;
      EdgeVector<T> x = random<T>(rows * 2 * columns, 1);
      for (size_t i = 0; i < x.size(); i += 7) x[i] *= T{30};
      const EdgeVector<T> dy = random<T>(rows * columns, 2);
      EdgeVector<T> out(rows * columns), again = dy, dx(x.size()), in_place = x;
      swiglu<T>({rows, columns, x.data(), out.data(), columns});
      swiglu_backward<T>({rows, columns, x.data(), again.data(), dx.data()});
      EXPECT_EQ(out, again);
      swiglu<T>({rows, columns, in_place.data(), in_place.data(), 2 * columns});
      std::vector<Real> want(out.size()), want_dx(x.size());
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < columns; ++c) {
          const Real gate = x[r * 2 * columns + c], up = x[(r * 2 + 1) * columns + c];
          const Real s = 1 / (1 + std::exp(-gate)), g = dy[r * columns + c];
          want[r * columns + c] = gate * s * up;
          want_dx[r * 2 * columns + c] = g * up * (s + gate * s * (1 - s));
          want_dx[(r * 2 + 1) * columns + c] = g * gate * s;
          EXPECT_EQ(in_place[r * 2 * columns + c], out[r * columns + c]);
          EXPECT_EQ(in_place[(r * 2 + 1) * columns + c], x[(r * 2 + 1) * columns + c]);
        }
      expect_near(out, want, "out");
      expect_near(dx, want_dx, "gradient");
    }
  });
}

EdgeVector<Bfloat16> rounded(const EdgeVector<float>& values) {
  EdgeVector<Bfloat16> narrow;
  for (const float value : values) narrow.emplace_back(value);
  return narrow;
}
EdgeVector<float> widened(const EdgeVector<Bfloat16>& values) {
  return {values.begin(), values.end()};
}

TEST(LlamaKernels, Bf16EqualsFloatRoundedOnce) {
  on_every_target([] {
    const int64_t rows = 3, columns = 37;
    const auto x = rounded(random<float>(rows * 2 * columns, 1));
    const auto dy = rounded(random<float>(rows * columns, 2));
    const auto wide_x = widened(x);
    EdgeVector<Bfloat16> out(dy.size()), again = dy, dx(x.size()), turned = x;
    EdgeVector<float> wide_out(dy.size()), wide_again = widened(dy), wide_dx(x.size()),
                                           wide_turned = wide_x;
    swiglu<Bfloat16>({rows, columns, x.data(), out.data(), columns});
    swiglu<float>({rows, columns, wide_x.data(), wide_out.data(), columns});
    EXPECT_EQ(widened(out), widened(rounded(wide_out)));
    swiglu_backward<Bfloat16>({rows, columns, x.data(), again.data(), dx.data()});
    swiglu_backward<float>({rows, columns, wide_x.data(), wide_again.data(), wide_dx.data()});
    EXPECT_EQ(widened(again), widened(out));
    EXPECT_EQ(widened(dx), widened(rounded(wide_dx)));
    const auto cosines = random<float>(columns, 3), sines = random<float>(columns, 4);
    rotate<Bfloat16>({rows, 2 * columns, cosines.data(), sines.data(), true, turned.data()});
    rotate<float>({rows, 2 * columns, cosines.data(), sines.data(), true, wide_turned.data()});
    EXPECT_EQ(widened(turned), widened(rounded(wide_turned)));
  });
}

TYPED_TEST(LlamaKernelTest, ExtremeGatesStayFinite) {
  using T = TypeParam;
  for (const T gate : {T{-1e4}, T{-90}, T{0}, T{90}, T{1e4}}) {
    const EdgeVector<T> x = {gate, T{2}};
    EdgeVector<T> out = {T{1}}, dx(2);
    swiglu_backward<T>({1, 1, x.data(), out.data(), dx.data()});
    EXPECT_NEAR(out[0], gate > 0 ? 2 * gate : T{0}, 1e-6) << gate;
    EXPECT_TRUE(std::isfinite(dx[0]) && std::isfinite(dx[1])) << gate;
  }
}

/// Three heads that share keys and values in one call, against each of them alone.
TYPED_TEST(LlamaKernelTest, SharedKeysAndValuesGetTheSumOfTheirGradients) {
  using T = TypeParam;
  const int64_t tokens = 150, width = 6, group = 3, wide = group * width;
  const auto k = random<T>(tokens * width, 1), v = random<T>(tokens * width, 2);
  const auto q = random<T>(tokens * wide, 3), dy = random<T>(tokens * wide, 4);
  const RandomStream stream(7, "dropout.test");
  const DropoutMask mask(stream, 0.2);
  EdgeVector<T> out(q.size()), sums(group * tokens), delta(group * tokens);
  std::vector<Real> want_dk(k.size()), want_dv(v.size());
  EdgeVector<T> want_dq(q.size()), dq(q.size()), dk(k.size(), T{9}), dv(v.size(), T{9});
  AttentionBackwardCall<T> call;
  for (int64_t member = group - 1; member >= 0; --member) {  // ends with the first one's addresses
    call.forward = {.queries = tokens,
                    .head_width = width,
                    .q = q.data() + member * width,
                    .q_stride = wide,
                    .k = k.data(),
                    .v = v.data(),
                    .kv_stride = width,
                    .out = out.data() + member * width,
                    .out_stride = wide,
                    .log_sum_exp = sums.data() + member * tokens,
                    .mask = &mask,
                    .head = static_cast<uint64_t>(4 + member)};
    attention(call.forward);
    call.out_gradient = dy.data() + member * width;
    call.out_gradient_stride = call.gradient_stride = wide;
    EdgeVector<T> alone_dk(tokens * wide), alone_dv(tokens * wide);  // rows of the gradient stride
    call.dq = want_dq.data() + member * width;
    call.dk = alone_dk.data();
    call.dv = alone_dv.data();
    call.delta = delta.data();
    attention_backward(call);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < width; ++c) {
        want_dk[t * width + c] += alone_dk[t * wide + c];
        want_dv[t * width + c] += alone_dv[t * wide + c];
      }
  }
  EdgeVector<T> all_dk(tokens * wide, T{9}), all_dv(tokens * wide, T{9});
  call.dq = dq.data();
  call.dk = all_dk.data();
  call.dv = all_dv.data();
  call.group = group;
  attention_backward(call);
  EXPECT_EQ(dq, want_dq);
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t c = 0; c < width; ++c) {
      dk[t * width + c] = all_dk[t * wide + c];
      dv[t * width + c] = all_dv[t * wide + c];
    }
  expect_near(dk, want_dk, "keys");
  expect_near(dv, want_dv, "values");
}

}  // namespace
}  // namespace strait::kernel
