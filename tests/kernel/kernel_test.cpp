// Every kernel against a plain reference in long double, for every instruction set this processor
// has.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "strait/base/random.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/dropout.h"
#include "strait/kernel/elementwise.h"
#include "strait/kernel/gemm.h"
#include "strait/kernel/loss.h"
#include "strait/kernel/norm.h"
#include "strait/kernel/normal.h"
#include "strait/kernel/parallel.h"
#include "tests/kernel/edge_vector.h"
#include "tests/kernel/targets.h"

namespace strait::kernel {
namespace {

using Wide = long double;

template <class T>
EdgeVector<T> random(int64_t count, uint64_t seed) {
  const RandomStream stream(seed, "test");
  EdgeVector<T> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(stream.normal(i));
  return values;
}

/// Rounding of `terms` additions of products around 1, as a share of the result's scale; the factor
/// 8 covers the few operations around the sum.
template <class T>
Wide tolerance(int64_t terms) {
  return 8 * static_cast<Wide>(std::numeric_limits<T>::epsilon()) *
         std::sqrt(static_cast<Wide>(terms + 1));
}

template <class T>
void expect_near(const EdgeVector<T>& got, const std::vector<Wide>& expected, Wide limit,
                 const char* what) {
  ASSERT_EQ(got.size(), expected.size());
  Wide scale = 1;
  for (const Wide value : expected) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<Wide>(got[i]) - expected[i]), limit * scale)
        << what << " element " << i;
  }
}

template <class T>
class KernelTest : public testing::Test {};
using Elements = testing::Types<float, double>;
TYPED_TEST_SUITE(KernelTest, Elements);

struct GemmCase {
  int64_t rows, columns, depth;
  bool a_transposed, b_transposed, accumulate, bias;
};

template <class T>
void check_gemm(const GemmCase& c, int threads) {
  // Padded rows, so that strides differ from sizes.
  const int64_t a_stride = (c.a_transposed ? c.rows : c.depth) + 3;
  const int64_t b_stride = (c.b_transposed ? c.depth : c.columns) + 5, c_stride = c.columns + 2;
  const auto a = random<T>(a_stride * (c.a_transposed ? c.depth : c.rows), 1);
  const auto b = random<T>(b_stride * (c.b_transposed ? c.columns : c.depth), 2);
  const auto bias = random<T>(c.columns, 3);
  auto result = random<T>(c_stride * c.rows, 4);
  std::vector<Wide> expected(result.begin(), result.end());
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) {
      Wide sum =
          c.accumulate ? expected[i * c_stride + j] : (c.bias ? static_cast<Wide>(bias[j]) : 0);
      for (int64_t k = 0; k < c.depth; ++k) {
        sum += static_cast<Wide>(a[c.a_transposed ? k * a_stride + i : i * a_stride + k]) *
               static_cast<Wide>(b[c.b_transposed ? j * b_stride + k : k * b_stride + j]);
      }
      expected[i * c_stride + j] = sum;
    }
  }
  GemmCall<T> call;
  call.rows = c.rows;
  call.columns = c.columns;
  call.depth = c.depth;
  call.a = {a.data(), c.a_transposed ? 1 : a_stride, c.a_transposed ? a_stride : 1};
  call.b = {b.data(), c.b_transposed ? 1 : b_stride, c.b_transposed ? b_stride : 1};
  call.c = result.data();
  call.c_stride = c_stride;
  call.accumulate = c.accumulate;
  call.bias = c.bias ? bias.data() : nullptr;
  gemm(call, threads);
  expect_near(result, expected, tolerance<T>(c.depth), "gemm");
}

TYPED_TEST(KernelTest, GemmEqualsTheTripleLoop) {
  on_every_target([] {
    for (const int64_t rows : {1, 2, 12, 13, 150}) {
      for (const int64_t columns : {1, 31, 33, 70}) {
        for (const int64_t depth : {1, 4, 19, 260}) {
          const int64_t mix = rows + columns + depth;
          check_gemm<TypeParam>(
              {rows, columns, depth, mix % 2 == 0, mix % 3 == 0, mix % 5 < 2, mix % 5 == 4},
              1 + static_cast<int>(mix % 3));
        }
      }
    }
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) check_gemm<TypeParam>({40, 600, 30, a, b, false, true}, 2);
    }
  });
}

/// Several blocks of depth and of columns, edges in each, and an addend elsewhere than in c.
TYPED_TEST(KernelTest, LargeGemmEqualsTheTripleLoop) {
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      check_gemm<TypeParam>({29, 805, 801, a, b, a != b, a == b}, 2);
      check_gemm<TypeParam>({1100, 34, 400, a, b, a == b, false}, 1);
      check_gemm<TypeParam>({261, 805, 401, a, b, a == b, a != b}, 1);
    }
  }
}

/// Few rows are multiplied in another order of panels than many, but each sum in the same order.
TYPED_TEST(KernelTest, FewRowsHaveTheBitsOfMany) {
  using T = TypeParam;
  const int64_t rows = 300, columns = 83, depth = 801;
  const auto a = random<T>(rows * depth, 1), b = random<T>(depth * columns, 2);
  on_every_target([&] {
    for (const bool turned : {false, true}) {
      const MatrixView<T> right{b.data(), turned ? 1 : columns, turned ? depth : 1};
      EdgeVector<T> whole(rows * columns), parts(rows * columns);
      GemmCall<T> call{rows, columns, depth, {a.data(), depth, 1}, right};
      call.c = whole.data();
      call.c_stride = columns;
      gemm(call, 1);
      for (int64_t row = 0; row < rows; row += call.rows) {
        call.rows = std::min<int64_t>(row + 1, rows - row);  // 1, 2, 4, ... 128
        call.a.data = a.data() + row * depth;
        call.c = parts.data() + row * columns;
        gemm(call, 1);
      }
      EXPECT_EQ(whole, parts) << turned;
    }
  });
}

TYPED_TEST(KernelTest, GemmAddsBaseAndBias) {
  using T = TypeParam;
  const int64_t rows = 14, columns = 45, depth = 500, stride = 50;
  const auto a = random<T>(rows * depth, 1), b = random<T>(columns * depth, 2),
             bias = random<T>(columns, 3), base = random<T>(rows * stride, 4);
  EdgeVector<T> plain(rows * columns), both(rows * columns);
  GemmCall<T> call{rows, columns, depth, {a.data(), depth, 1}, {b.data(), 1, depth}};
  call.c = plain.data();
  call.c_stride = columns;
  gemm(call, 1);
  call.c = both.data();
  call.bias = bias.data();
  call.base = base.data();
  call.base_stride = stride;
  gemm(call, 2);
  std::vector<Wide> expected;
  for (int64_t i = 0; i < rows * columns; ++i) {
    expected.push_back(static_cast<Wide>(plain[i]) + bias[i % columns] +
                       base[i / columns * stride + i % columns]);
  }
  expect_near(both, expected, tolerance<T>(depth), "base and bias");
}

TYPED_TEST(KernelTest, GemmDoesNotDependOnThreads) {
  const int64_t rows = 147, columns = 203, depth = 901;
  const auto a = random<TypeParam>(rows * depth, 1), b = random<TypeParam>(columns * depth, 2);
  EdgeVector<TypeParam> one(rows * columns), many(rows * columns);
  for (const int threads : {2, 3, 4}) {
    gemm<TypeParam>(
        {rows, columns, depth, {a.data(), depth, 1}, {b.data(), 1, depth}, one.data(), columns}, 1);
    gemm<TypeParam>(
        {rows, columns, depth, {a.data(), depth, 1}, {b.data(), 1, depth}, many.data(), columns},
        threads);
    EXPECT_EQ(one, many) << threads;
  }
}

TYPED_TEST(KernelTest, LayerNormAndItsGradients) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t columns : {1, 2, 7, 16, 33, 100}) {
      const int64_t rows = 5;
      const auto x = random<T>(rows * columns, 1), gradient = random<T>(rows * columns, 2);
      const auto weight = random<T>(columns, 3), bias = random<T>(columns, 4);
      const auto residual = random<T>(rows * columns, 5);
      EdgeVector<T> mean(rows), rstd(rows), out(rows * columns), again(rows * columns),
          dx(rows * columns);
      layer_norm<T>({rows, columns, x.data(), weight.data(), bias.data(), mean.data(), rstd.data(),
                     out.data(), 1e-5});
      layer_norm_again<T>({rows, columns, x.data(), weight.data(), bias.data(), mean.data(),
                           rstd.data(), again.data()});
      EXPECT_EQ(out, again);
      layer_norm_backward<T>({rows, columns, x.data(), mean.data(), rstd.data(), weight.data(),
                              gradient.data(), residual.data(), dx.data()});
      EdgeVector<T> weight_gradient(columns, T{2}), bias_gradient(columns, T{3});
      layer_norm_parameters<T>({rows, columns, 0, columns, x.data(), mean.data(), rstd.data(),
                                gradient.data(), weight_gradient.data(), bias_gradient.data(),
                                true});
      std::vector<Wide> expected(rows * columns), expected_dx(rows * columns);
      std::vector<Wide> expected_weight(columns, 2), expected_bias(columns, 3);
      Wide steepest = 1;
      for (int64_t r = 0; r < rows; ++r) {
        Wide m = 0, v = 0, s1 = 0, s2 = 0;
        for (int64_t c = 0; c < columns; ++c) m += x[r * columns + c] / static_cast<Wide>(columns);
        for (int64_t c = 0; c < columns; ++c) {
          v += (x[r * columns + c] - m) * (x[r * columns + c] - m) / static_cast<Wide>(columns);
        }
        const Wide s = 1 / std::sqrt(v + 1e-5L);
        steepest = std::max(steepest, s);
        for (int64_t c = 0; c < columns; ++c) {
          const Wide hat = (x[r * columns + c] - m) * s,
                     g = static_cast<Wide>(gradient[r * columns + c]);
          expected[r * columns + c] = hat * weight[c] + bias[c];
          expected_weight[c] += g * hat;
          expected_bias[c] += g;
          s1 += g * weight[c] / static_cast<Wide>(columns);
          s2 += g * weight[c] * hat / static_cast<Wide>(columns);
        }
        for (int64_t c = 0; c < columns; ++c) {
          const Wide hat = (x[r * columns + c] - m) * s;
          expected_dx[r * columns + c] =
              residual[r * columns + c] +
              s * (gradient[r * columns + c] * static_cast<Wide>(weight[c]) - s1 - hat * s2);
        }
      }
      // Errors of x - mean are amplified by 1 / deviation.
      const Wide limit = tolerance<T>(columns) * steepest;
      expect_near(out, expected, limit, "out");
      expect_near(dx, expected_dx, limit * steepest, "dx");
      expect_near(weight_gradient, expected_weight, limit, "weight");
      expect_near(bias_gradient, expected_bias, limit, "bias");
    }
  });
}

Wide wide_gelu(Wide x) {
  return x / 2 *
         (1 + std::tanh(std::sqrt(2 / std::numbers::pi_v<Wide>) * (x + 0.044715L * x * x * x)));
}

TYPED_TEST(KernelTest, GeluAndItsDerivative) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t count : {1, 3, 17, 401}) {
      EdgeVector<T> x = random<T>(count, 1), gradient = random<T>(count, 2), out(x.size()),
                    again(x.size());
      for (int64_t i = 0; i < count; ++i) x[i] = x[i] * (i % 7 == 0 ? T{30} : T{2});
      std::vector<Wide> expected(x.size()), slope(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        expected[i] = wide_gelu(x[i]);
        const Wide h = 1e-6L;  // error of the difference about 1e-12
        slope[i] = gradient[i] * (wide_gelu(x[i] + h) - wide_gelu(x[i] - h)) / (2 * h);
      }
      gelu<T>({count, x.data(), out.data()});
      gelu_backward<T>({count, x.data(), gradient.data(), again.data()});
      EXPECT_EQ(out, again);
      expect_near(out, expected, tolerance<T>(1), "gelu");
      expect_near(gradient, slope, std::max(tolerance<T>(8), Wide{1e-11L}), "derivative");
    }
  });
}

TYPED_TEST(KernelTest, ExtremeGeluStaysFinite) {
  using T = TypeParam;
  EdgeVector<T> x = {T{-1e4}, T{-50}, T{0}, T{50}, T{1e4}}, out(5), gradient(5, T{1});
  gelu_backward<T>({5, x.data(), gradient.data(), out.data()});
  EXPECT_EQ(out[0] + T{1}, T{1});
  EXPECT_EQ(out[4], T{1e4});
  for (size_t i = 0; i < 5; ++i)
    EXPECT_TRUE(std::isfinite(out[i]) && std::isfinite(gradient[i])) << i;
}

TYPED_TEST(KernelTest, BiasAndColumnSums) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t columns : {1, 15, 64, 67}) {
      const int64_t rows = 9;
      const auto x = random<T>(rows * columns, 1), bias = random<T>(columns, 2);
      EdgeVector<T> out(rows * columns), sums(columns, T{4});
      std::vector<Wide> expected(rows * columns), expected_sums(columns, 4);
      for (int64_t i = 0; i < rows * columns; ++i) {
        expected[i] = static_cast<Wide>(x[i]) + bias[i % columns];
        expected_sums[i % columns] += x[i];
      }
      add_bias<T>({rows, columns, x.data(), bias.data(), out.data()});
      expect_near(out, expected, tolerance<T>(1), "bias");
      const int64_t cut = columns / 2;
      column_sums<T>({rows, columns, 0, cut, x.data(), sums.data(), true});
      column_sums<T>({rows, columns, cut, columns, x.data(), sums.data(), true});
      expect_near(sums, expected_sums, tolerance<T>(rows), "sums");
      EdgeVector<T> fresh(columns, T{4});
      column_sums<T>({rows, columns, 0, columns, x.data(), fresh.data(), false});
      for (int64_t c = 0; c < columns; ++c) expected_sums[c] -= 4;
      expect_near(fresh, expected_sums, tolerance<T>(rows), "fresh sums");
    }
  });
}

TYPED_TEST(KernelTest, SumsMeetBiasAndBaseInThatOrder) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t columns : {1, 15, 64, 67}) {
      const int64_t rows = 5;
      const auto sum = random<T>(rows * columns, 1), bias = random<T>(columns, 2);
      const auto base = random<T>(rows * columns, 3);
      EdgeVector<T> all = base, alone(all.size());
      add_sum<T>({rows, columns, sum.data(), bias.data(), all.data(), all.data()});
      add_sum<T>({rows, columns, sum.data(), nullptr, nullptr, alone.data()});
      EXPECT_EQ(alone, sum);
      for (int64_t i = 0; i < rows * columns; ++i)
        EXPECT_EQ(all[i], base[i] + (bias[i % columns] + sum[i])) << i;
    }
  });
}

TYPED_TEST(KernelTest, CrossEntropy) {
  using T = TypeParam;
  on_every_target([] {
    for (const int64_t vocabulary : {1, 2, 31, 32, 65, 1003}) {
      for (const int32_t target : {-1, 0, static_cast<int32_t>(vocabulary - 1)}) {
        EdgeVector<T> logits = random<T>(vocabulary, 1);
        for (T& value : logits)
          value = value * T{5} + T{300};  // exp would overflow without the maximum
        Wide maximum = logits[0], sum = 0;
        for (const T value : logits) maximum = std::max(maximum, static_cast<Wide>(value));
        for (const T value : logits) sum += std::exp(static_cast<Wide>(value) - maximum);
        std::vector<Wide> expected(logits.size(), 0);
        Wide expected_loss = 0;
        if (target >= 0) {
          expected_loss = std::log(sum) + maximum - logits[target];
          for (size_t i = 0; i < logits.size(); ++i)
            expected[i] = 2.5L * std::exp(logits[i] - maximum) / sum;
          expected[target] -= 2.5L;
        }
        double loss = -1, alone = -1;
        EdgeVector<T> copy = logits;
        cross_entropy<T>({vocabulary, copy.data(), target, false, 2.5, &alone});
        EXPECT_EQ(copy, logits) << "the loss alone leaves the logits";
        cross_entropy<T>({vocabulary, logits.data(), target, true, 2.5, &loss});
        EXPECT_EQ(loss, alone);
        EXPECT_NEAR(loss, static_cast<double>(expected_loss),
                    static_cast<double>(tolerance<T>(vocabulary) * 10));
        expect_near(logits, expected, tolerance<T>(vocabulary), "gradient");
      }
    }
  });
}

TYPED_TEST(KernelTest, DropoutMaskIsAFunctionOfTheElement) {
  using T = TypeParam;
  on_every_target([] {
    const RandomStream stream(7, "dropout.test", 2, 3);
    const DropoutMask mask(stream, 0.3);
    const int64_t count = 1201;
    const auto x = random<T>(count, 1), base = random<T>(count, 2);
    int64_t dropped = 0;
    EdgeVector<T> expected(count);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t element = static_cast<uint64_t>(i) + 5;
      const uint64_t bits = (stream.bits(element / 2) >> (element % 2 * 32)) & 0xffffffffU;
      const bool keep = static_cast<double>(bits) >= std::round(0.3 * 4294967296.0);
      EXPECT_EQ(mask.keeps(element), keep);
      expected[i] = (keep ? static_cast<T>(1 / 0.7) : T{0}) * x[i];
      dropped += !keep;
    }
    EXPECT_NEAR(static_cast<double>(dropped) / count, 0.3, 5 * std::sqrt(0.21 / count));
    for (const int64_t piece : {1, 3, 256, 1201}) {
      EdgeVector<T> out(count), sum(base);
      for (int64_t begin = 0; begin < count; begin += piece) {
        const int64_t size = std::min(piece, count - begin);
        const uint64_t first = static_cast<uint64_t>(begin) + 5;
        dropout<T>({size, &mask, first, x.data() + begin, nullptr, out.data() + begin});
        dropout<T>({size, &mask, first, x.data() + begin, sum.data() + begin, sum.data() + begin});
      }
      EXPECT_EQ(out, expected) << piece;
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_NEAR(sum[i], base[i] + expected[i],
                    8 * std::numeric_limits<T>::epsilon() * (1 + std::abs(sum[i])));
      }
    }
  });
}

struct AttentionCase {
  int64_t queries, first, head_width;
  bool documents;
  double rate;
};

/// Plain attention of one head on dense rows, in long double.
template <class T>
void check_attention(const AttentionCase& c) {
  const int64_t keys = c.first + c.queries, stride = c.head_width + 4;
  const auto q = random<T>(c.queries * stride, 1), k = random<T>(keys * stride, 2),
             v = random<T>(keys * stride, 3);
  std::vector<int32_t> starts(c.queries);
  for (int64_t i = 0; i < c.queries; ++i) starts[i] = static_cast<int32_t>((c.first + i) / 37 * 37);
  const DropoutMask mask(RandomStream(3, "a"), c.rate);
  EdgeVector<T> out(c.queries * c.head_width), log_sum_exp(c.queries);
  attention<T>({c.queries, c.first, c.head_width, 0, q.data(), stride, k.data(), v.data(), stride,
                out.data(), c.head_width, log_sum_exp.data(), c.documents ? starts.data() : nullptr,
                &mask, 6});
  std::vector<Wide> expected(out.size(), 0), expected_log(c.queries);
  for (int64_t i = 0; i < c.queries; ++i) {
    const int64_t begin = c.documents ? starts[i] : 0, end = c.first + i + 1;
    std::vector<Wide> p(end, 0);
    Wide sum = 0;
    for (int64_t j = begin; j < end; ++j) {
      Wide score = 0;
      for (int64_t d = 0; d < c.head_width; ++d)
        score += static_cast<Wide>(q[i * stride + d]) * k[j * stride + d];
      p[j] = std::exp(score / std::sqrt(static_cast<Wide>(c.head_width)));
      sum += p[j];
    }
    expected_log[i] = std::log(sum);
    for (int64_t j = begin; j < end; ++j) {
      const uint64_t element = (uint64_t{6} << 40) + (static_cast<uint64_t>(c.first + i) << 20) + j;
      const Wide kept = mask.keeps(element) ? 1 / (1 - static_cast<Wide>(c.rate)) : 0;
      for (int64_t d = 0; d < c.head_width; ++d) {
        expected[i * c.head_width + d] += kept * p[j] / sum * v[j * stride + d];
      }
    }
  }
  // Errors of a score grow to errors of its exponential.
  const Wide limit = tolerance<T>(c.head_width + keys) * 4;
  expect_near(out, expected, limit, "attention");
  expect_near(log_sum_exp, expected_log, limit, "log-sum-exp");
}

TYPED_TEST(KernelTest, AttentionEqualsThePlainOne) {
  on_every_target([] {
    for (const double rate : {0.0, 0.2}) {
      for (const bool documents : {false, true}) {
        check_attention<TypeParam>({1, 0, 1, documents, rate});
        check_attention<TypeParam>({7, 0, 5, documents, rate});
        check_attention<TypeParam>({64, 0, 32, documents, rate});
        check_attention<TypeParam>({65, 0, 33, documents, rate});
        check_attention<TypeParam>({150, 0, 16, documents, rate});
        check_attention<TypeParam>({1, 90, 16, documents, rate});
        check_attention<TypeParam>({70, 67, 8, documents, rate});
        check_attention<TypeParam>({70, 0, 400, documents, rate});
        check_attention<TypeParam>({300, 30, 4, documents, rate});  // more than a group of tiles
      }
    }
  });
}

TYPED_TEST(KernelTest, NormalIsBoxMullerOfTheStream) {
  using T = TypeParam;
  on_every_target([] {
    const RandomStream stream(11, "weights");
    for (const uint64_t first : {0, 1, 6, 1000001}) {
      const int64_t count = 700;
      EdgeVector<T> out(count);
      normal<T>({stream.key(), first, count, 0.5, out.data()});
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t element = first + static_cast<uint64_t>(i), even = element / 2 * 2;
        const Wide radius = std::sqrt(-2 * std::log(1 - static_cast<Wide>(stream.uniform(even))));
        const Wide angle =
            2 * std::numbers::pi_v<Wide> * static_cast<Wide>(stream.uniform(even + 1));
        const Wide expected = radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle)) / 2;
        // The argument of cos is rounded at up to 2 pi, that of log next to 1.
        ASSERT_NEAR(static_cast<double>(out[i]), static_cast<double>(expected),
                    1e-14 + static_cast<double>(std::numeric_limits<T>::epsilon()))
            << element;
      }
    }
  });
}

TEST(ParallelRanges, CoverOnceAtMultiplesOfTheUnit) {
  for (const int64_t count : {0, 1, 5, 64, 101}) {
    for (const int threads : {1, 2, 3, 7}) {
      std::vector<int> hits(static_cast<size_t>(count));
      parallel_ranges(count, 8, threads, [&](int64_t begin, int64_t end) {
        if (begin % 8 != 0) hits[static_cast<size_t>(begin)] = 100;
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      EXPECT_EQ(hits, std::vector<int>(static_cast<size_t>(count), 1));
    }
  }
}

}  // namespace
}  // namespace strait::kernel
