// Kernels on bf16: those that only load and store it equal the fp32 kernel's rounded result bit for
// bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "strait/base/bfloat16.h"
#include "strait/base/random.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/dropout.h"
#include "strait/kernel/elementwise.h"
#include "strait/kernel/gemm.h"
#include "strait/kernel/loss.h"
#include "strait/kernel/norm.h"
#include "strait/kernel/onednn.h"
#include "tests/kernel/edge_vector.h"
#include "tests/kernel/targets.h"

namespace strait::kernel {
namespace {

EdgeVector<Bfloat16> random_narrow(int64_t count, uint64_t seed, double scale = 1.0) {
  const RandomStream stream(seed, "test");
  EdgeVector<Bfloat16> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = Bfloat16(scale * stream.normal(i));
  return values;
}
EdgeVector<float> widened(const EdgeVector<Bfloat16>& values) {
  return {values.begin(), values.end()};
}
std::vector<uint16_t> bits_of(const EdgeVector<Bfloat16>& values) {
  std::vector<uint16_t> bits;
  for (const Bfloat16 value : values) bits.push_back(value.bits);
  return bits;
}
std::vector<uint16_t> rounded_bits(const EdgeVector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float value : values) bits.push_back(Bfloat16(value).bits);
  return bits;
}

TEST(Bfloat16, RoundsToNearestEvenAndKeepsNaN) {
  const auto round = [](float value) { return static_cast<float>(Bfloat16(value)); };
  EXPECT_EQ(round(1.0f), 1.0f);
  EXPECT_EQ(round(1.0f + 0x1p-8f), 1.0f);                    // tie to even, down
  EXPECT_EQ(round(1.0f + 3 * 0x1p-8f), 1.0f + 4 * 0x1p-8f);  // tie to even, up
  EXPECT_EQ(round(1.0f + 0x1.02p-8f), 1.0f + 0x1p-7f);
  EXPECT_EQ(round(-0.0f), 0.0f);
  EXPECT_TRUE(std::signbit(round(-0.0f)));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(round(kInfinity), kInfinity);
  EXPECT_EQ(round(std::numeric_limits<float>::max()), kInfinity);
  EXPECT_EQ(round(-std::numeric_limits<float>::max()), -kInfinity);
  EXPECT_TRUE(std::isnan(round(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::isnan(round(std::bit_cast<float>(0x7f800001U))));
}

TEST(Bfloat16, SumsAreRoundedOnce) {
  on_every_target([] {
    const int64_t columns = 67;
    const auto bias = random_narrow(columns, 1), base = random_narrow(columns, 2);
    EdgeVector<float> sum(static_cast<size_t>(columns), 1.0f + 0x1p-12f), expected;
    EdgeVector<Bfloat16> out(sum.size());
    for (size_t i = 0; i < sum.size(); ++i)
      expected.push_back(static_cast<float>(base[i]) + (static_cast<float>(bias[i]) + sum[i]));
    add_sum<Bfloat16>({1, columns, sum.data(), bias.data(), base.data(), out.data()});
    EXPECT_EQ(bits_of(out), rounded_bits(expected));
  });
}

/// Every kernel stores through the same vector conversion: all exponents, ties, infinities, NaN.
TEST(Bfloat16, VectorsRoundAsScalarsDo) {
  on_every_target([] {
    EdgeVector<float> all;
    for (uint64_t word = 0; word < 0x100000000ULL; word += 0x3fff) {
      all.push_back(std::bit_cast<float>(static_cast<uint32_t>(word)));
      all.push_back(std::bit_cast<float>(static_cast<uint32_t>(word & 0xffff0000U) | 0x8000U));
    }
    // A product with one is exact, and so is what is left when nothing is added.
    const int64_t count = static_cast<int64_t>(all.size());
    const Bfloat16 one(1.0f);
    EdgeVector<Bfloat16> narrow(all.size());
    for (size_t i = 0; i < all.size(); ++i) narrow[i] = Bfloat16(all[i]);
    EdgeVector<Bfloat16> out(all.size());
    add_bias<Bfloat16>({1, count, narrow.data(), nullptr, out.data()});
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(out[i].bits | (std::isnan(all[i]) ? 0x40 : 0), narrow[i].bits) << i;
    }
    static_cast<void>(one);
    // Sums of two: the result has more digits than bf16 holds.
    const auto x = random_narrow(4001, 1, 3.0), y = random_narrow(4001, 2, 0.02);
    EdgeVector<Bfloat16> sum(x.size());
    add_bias<Bfloat16>({1, 4001, x.data(), y.data(), sum.data()});
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(sum[i].bits, Bfloat16(static_cast<float>(x[i]) + static_cast<float>(y[i])).bits);
    }
  });
}

TEST(Bfloat16Kernels, ElementwiseEqualsFloatRounded) {
  on_every_target([] {
    for (const int64_t count : {1, 3, 17, 401}) {
      const auto x = random_narrow(count, 1, 2.0), gradient = random_narrow(count, 2);
      auto wide_gradient = widened(gradient);
      auto narrow_gradient = gradient;
      EdgeVector<float> wide(x.size());
      EdgeVector<Bfloat16> out(x.size()), again(x.size());
      gelu<float>({count, widened(x).data(), wide.data()});
      gelu<Bfloat16>({count, x.data(), out.data()});
      EXPECT_EQ(bits_of(out), rounded_bits(wide));
      gelu_backward<float>({count, widened(x).data(), wide_gradient.data(), wide.data()});
      gelu_backward<Bfloat16>({count, x.data(), narrow_gradient.data(), again.data()});
      EXPECT_EQ(bits_of(again), bits_of(out));
      EXPECT_EQ(bits_of(narrow_gradient), rounded_bits(wide_gradient));

      const DropoutMask mask(RandomStream(7, "dropout.test", 2, 3), 0.3);
      dropout<float>({count, &mask, 5, widened(x).data(), widened(gradient).data(), wide.data()});
      dropout<Bfloat16>({count, &mask, 5, x.data(), gradient.data(), out.data()});
      // The compiler may or may not contract base + factor x: one unit in the last place of fp32.
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(static_cast<float>(out[i]), wide[i], 0x1.01p-8f * std::abs(wide[i]));
      }
      EdgeVector<float> sums(x.size(), 4.0f), wide_sums(x.size(), 4.0f);
      column_sums<float>({1, count, 0, count, widened(x).data(), wide_sums.data(), true});
      column_sums<Bfloat16>({1, count, 0, count, x.data(), sums.data(), true});
      EXPECT_EQ(sums, wide_sums);
    }
  });
}

TEST(Bfloat16Kernels, NormEqualsFloatRounded) {
  on_every_target([] {
    for (const int64_t columns : {1, 2, 7, 16, 33, 100}) {
      const int64_t rows = 5, count = rows * columns;
      const auto x = random_narrow(count, 1), gradient = random_narrow(count, 2);
      const auto weight = random_narrow(columns, 3), bias = random_narrow(columns, 4);
      const auto residual = random_narrow(count, 5);
      const auto wx = widened(x), wg = widened(gradient), ww = widened(weight), wb = widened(bias),
                 wr = widened(residual);
      EdgeVector<float> mean(rows), rstd(rows), wide_mean(rows), wide_rstd(rows), wide(count);
      EdgeVector<Bfloat16> out(count), again(count);
      layer_norm<float>({rows, columns, wx.data(), ww.data(), wb.data(), wide_mean.data(),
                         wide_rstd.data(), wide.data(), 1e-5});
      layer_norm<Bfloat16>({rows, columns, x.data(), weight.data(), bias.data(), mean.data(),
                            rstd.data(), out.data(), 1e-5});
      EXPECT_EQ(mean, wide_mean);
      EXPECT_EQ(rstd, wide_rstd);
      EXPECT_EQ(bits_of(out), rounded_bits(wide));
      layer_norm_again<Bfloat16>({rows, columns, x.data(), weight.data(), bias.data(), mean.data(),
                                  rstd.data(), again.data()});
      EXPECT_EQ(bits_of(again), bits_of(out));
      layer_norm_backward<float>({rows, columns, wx.data(), mean.data(), rstd.data(), ww.data(),
                                  wg.data(), wr.data(), wide.data()});
      layer_norm_backward<Bfloat16>({rows, columns, x.data(), mean.data(), rstd.data(),
                                     weight.data(), gradient.data(), residual.data(), out.data()});
      EXPECT_EQ(bits_of(out), rounded_bits(wide));
      EdgeVector<float> a(columns, 2.0f), b(columns, 3.0f), c(columns, 2.0f), d(columns, 3.0f);
      layer_norm_parameters<float>({rows, columns, 0, columns, wx.data(), mean.data(), rstd.data(),
                                    wg.data(), a.data(), b.data(), true});
      layer_norm_parameters<Bfloat16>({rows, columns, 0, columns, x.data(), mean.data(),
                                       rstd.data(), gradient.data(), c.data(), d.data(), true});
      EXPECT_EQ(a, c);
      EXPECT_EQ(b, d);
    }
  });
}

TEST(Bfloat16Kernels, LossEqualsFloatsAndItsGradientIsRounded) {
  on_every_target([] {
    for (const int64_t vocabulary : {1, 2, 31, 32, 65, 1003}) {
      for (const int32_t target : {-1, 0, static_cast<int32_t>(vocabulary - 1)}) {
        EdgeVector<float> logits = widened(random_narrow(vocabulary, 1, 5.0)), wide = logits;
        double loss = -1, wide_loss = -1;
        cross_entropy<float>({vocabulary, wide.data(), target, true, 2.5, &wide_loss});
        cross_entropy<Bfloat16>({vocabulary, logits.data(), target, true, 2.5, &loss});
        EXPECT_EQ(loss, wide_loss);
        const auto* first = reinterpret_cast<const Bfloat16*>(logits.data());
        EXPECT_EQ(bits_of({first, first + vocabulary}), rounded_bits(wide));
      }
    }
  });
}

struct NarrowGemmCase {
  int64_t rows, columns, depth;
  bool a_transposed, b_transposed, accumulate, bias;
};

/// Runs `body` with every way of multiplying; what this process
/// lacks is kAutomatic.
template <class Body>
void with_all_products(const Body& body) {
  using enum NarrowProducts;
  for (const NarrowProducts products : {kWidened, kPaired, kPlainTiles, kTiles}) {
    SCOPED_TRACE(static_cast<int>(products));
    body(products);
  }
}

template <class C>
void check_narrow_gemm(const NarrowGemmCase& c, int threads, NarrowProducts products) {
  const int64_t a_stride = (c.a_transposed ? c.rows : c.depth) + 3;
  const int64_t b_stride = (c.b_transposed ? c.depth : c.columns) + 5, c_stride = c.columns + 2;
  const auto a = random_narrow(a_stride * (c.a_transposed ? c.depth : c.rows), 1);
  const auto b = random_narrow(b_stride * (c.b_transposed ? c.columns : c.depth), 2);
  const auto bias = random_narrow(c.columns, 3);
  const auto before = random_narrow(c_stride * c.rows, 4);
  std::vector<C> result;
  for (const Bfloat16 value : before) result.push_back(static_cast<C>(static_cast<float>(value)));
  gemm<Bfloat16, C>({c.rows,
                     c.columns,
                     c.depth,
                     {a.data(), c.a_transposed ? 1 : a_stride, c.a_transposed ? a_stride : 1},
                     {b.data(), c.b_transposed ? 1 : b_stride, c.b_transposed ? b_stride : 1},
                     result.data(),
                     c_stride,
                     c.accumulate,
                     c.bias ? bias.data() : nullptr,
                     nullptr,
                     0,
                     products},
                    threads);
  // fp32 sums of depth + 1 terms, subnormal products perhaps flushed; one rounding to C.
  const double unit = sizeof(C) == 2 ? 0x1p-8 : 0x1p-24;
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) {
      const double start = (c.accumulate ? static_cast<float>(before[i * c_stride + j]) : 0.0f) +
                           (c.bias ? static_cast<float>(bias[j]) : 0.0f);
      double sum = start, size = std::abs(start);
      for (int64_t k = 0; k < c.depth; ++k) {
        const double term =
            static_cast<double>(a[c.a_transposed ? k * a_stride + i : i * a_stride + k]) *
            static_cast<double>(b[c.b_transposed ? j * b_stride + k : k * b_stride + j]);
        sum += term;
        size += std::abs(term);
      }
      const double bound =
          static_cast<double>(c.depth + 2) * 0x1p-24 * size + unit * std::abs(sum) + 1e-30;
      ASSERT_NEAR(static_cast<float>(result[i * c_stride + j]), sum, bound) << i << " " << j;
    }
  }
  // What lies between the rows is left alone.
  for (int64_t i = 0; i < c.rows; ++i) {
    ASSERT_EQ(static_cast<float>(result[i * c_stride + c.columns]),
              static_cast<float>(before[i * c_stride + c.columns]));
  }
}

TEST(Bfloat16Kernels, GemmEqualsTheTripleLoop) {
  on_every_target([] {
    with_all_products([](NarrowProducts products) {
      for (const int64_t rows : {1, 2, 12, 13, 150}) {
        for (const int64_t columns : {1, 31, 33, 70}) {
          for (const int64_t depth : {1, 4, 19, 260}) {
            const int64_t mix = rows + columns + depth;
            const NarrowGemmCase c{rows,         columns,     depth,       mix % 2 == 0,
                                   mix % 3 == 0, mix % 5 < 2, mix % 5 == 4};
            check_narrow_gemm<float>(c, 1 + static_cast<int>(mix % 3), products);
            check_narrow_gemm<Bfloat16>(c, 1 + static_cast<int>(mix % 3), products);
          }
        }
      }
      for (const bool a : {false, true}) {
        for (const bool b : {false, true}) {
          check_narrow_gemm<float>({40, 600, 30, a, b, false, true}, 2, products);
          check_narrow_gemm<Bfloat16>({40, 600, 30, a, b, false, true}, 2, products);
        }
      }
    });
  });
}

/// Several blocks of depth: the sums between them are not narrow.
TEST(Bfloat16Kernels, LargeGemmEqualsTheTripleLoop) {
  with_all_products([](NarrowProducts products) {
    for (const bool a : {false, true}) {
      for (const bool b : {false, true}) {
        check_narrow_gemm<float>({29, 805, 801, a, b, a != b, a == b}, 2, products);
        check_narrow_gemm<Bfloat16>({29, 805, 801, a, b, a != b, a == b}, 2, products);
        check_narrow_gemm<Bfloat16>({1100, 34, 400, a, b, a == b, true}, 1, products);
      }
    }
  });
}

TEST(Bfloat16Kernels, OneDnnEqualsTheTripleLoop) {
  if (!has_onednn()) GTEST_SKIP() << "built without oneDNN, or for another processor";
  const auto check = [](const NarrowGemmCase& c) {
    check_narrow_gemm<float>(c, 2, NarrowProducts::kOneDnn);
    check_narrow_gemm<Bfloat16>(c, 2, NarrowProducts::kOneDnn);
  };
  for (const bool a : {false, true})
    for (const bool b : {false, true})
      for (const int64_t size : {1, 13, 70})
        for (const bool bias : {false, true}) check({size, 71 - size, 9 * size, a, b, bias, bias});
}

/// y = base + x W^T, beside its base and on it.
TEST(Bfloat16Kernels, EveryWayAddsToItsBase) {
  const int64_t rows = 33, columns = 47, depth = 801;
  const auto a = random_narrow(rows * depth, 1), b = random_narrow(columns * depth, 2);
  const auto base = random_narrow(rows * columns, 3);
  const auto add = [&](NarrowProducts products, bool beside) {
    EdgeVector<Bfloat16> sums = base;
    GemmCall<Bfloat16> call{rows, columns, depth, {a.data(), depth, 1}, {b.data(), 1, depth}};
    call.c = sums.data();
    call.base = beside ? base.data() : sums.data();
    call.c_stride = call.base_stride = columns;
    call.products = products;
    gemm(call, 2);
    return widened(sums);
  };
  const auto expected = add(NarrowProducts::kWidened, true);
  using enum NarrowProducts;
  for (const NarrowProducts products : {kWidened, kPlainTiles, kTiles, kOneDnn})
    for (const bool beside : {false, true}) {
      const auto found = add(products, beside);
      for (size_t i = 0; i < found.size(); ++i)
        ASSERT_NEAR(found[i], expected[i], 0x1p-7f * (std::abs(expected[i]) + 1)) << i;
    }
}

TEST(Bfloat16Kernels, GemmDoesNotDependOnThreads) {
  const int64_t rows = 147, columns = 203, depth = 901;
  const auto a = random_narrow(rows * depth, 1), b = random_narrow(columns * depth, 2);
  with_all_products([&](NarrowProducts products) {
    EdgeVector<Bfloat16> one(rows * columns), many(rows * columns);
    GemmCall<Bfloat16> call{rows, columns, depth, {a.data(), depth, 1}, {b.data(), 1, depth}};
    call.c_stride = columns;
    call.products = products;
    call.c = one.data();
    gemm(call, 1);
    call.c = many.data();
    for (const int threads : {2, 3, 4}) {
      gemm(call, threads);
      EXPECT_EQ(bits_of(one), bits_of(many)) << threads;
    }
  });
}

/// Rows of one head, and what masks them.
struct AttentionSize {
  int64_t queries = 0, width = 0;
  bool documents = false;
  int64_t stride() const { return width + 4; }
  int64_t count() const { return queries * stride(); }
  std::vector<int32_t> starts() const {
    std::vector<int32_t> all(static_cast<size_t>(queries));
    for (int64_t i = 0; i < queries; ++i)
      all[static_cast<size_t>(i)] = static_cast<int32_t>(i / 37 * 37);
    return all;
  }
};

template <class T>
struct AttentionInputs {
  EdgeVector<T> q, k, v, out_gradient;
};

/// The results and the gradients of q, k and v, without what lies between rows.
template <class T>
std::vector<EdgeVector<double>> attention_and_gradients(const AttentionSize& size,
                                                        const AttentionInputs<T>& in) {
  const std::vector<int32_t> starts = size.starts();
  const DropoutMask mask(RandomStream(3, "a"), 0.1);
  EdgeVector<T> out(size.count()), dq(size.count()), dk(size.count()), dv(size.count());
  EdgeVector<float> log_sum(size.queries), delta(size.queries), dq_sum(size.queries * size.width);
  AttentionBackwardCall<T> call;
  AttentionCall<T>& forward = call.forward;
  forward.queries = size.queries;
  forward.head_width = size.width;
  forward.q = in.q.data(), forward.k = in.k.data(), forward.v = in.v.data();
  forward.q_stride = forward.kv_stride = forward.out_stride = size.stride();
  forward.out = out.data();
  forward.log_sum_exp = log_sum.data();
  forward.starts = size.documents ? starts.data() : nullptr;
  forward.mask = &mask;
  forward.head = 6;
  attention(forward);
  call.out_gradient = in.out_gradient.data();
  call.out_gradient_stride = call.gradient_stride = size.stride();
  call.dq = dq.data(), call.dk = dk.data(), call.dv = dv.data();
  call.delta = delta.data();
  call.dq_sum = dq_sum.data();
  attention_backward(call);
  std::vector<EdgeVector<double>> results;
  for (const auto* part : {&out, &dq, &dk, &dv}) {
    EdgeVector<double>& to = results.emplace_back();
    for (int64_t row = 0; row < size.queries; ++row)
      for (int64_t c = 0; c < size.width; ++c)
        to.push_back(static_cast<float>((*part)[row * size.stride() + c]));
  }
  return results;
}

/// Against fp32 attention on the same numbers. Probabilities and score gradients are rounded once
/// (2^-8 each), results once more; delta comes from a rounded output: errors stay below three
/// roundings of what is summed.
void expect_near_floats(const AttentionSize& size) {
  const int64_t count = size.count();
  const AttentionInputs<Bfloat16> in{random_narrow(count, 1), random_narrow(count, 2),
                                     random_narrow(count, 3), random_narrow(count, 4)};
  const auto narrow = attention_and_gradients(size, in);
  const auto wide = attention_and_gradients<float>(
      size, {widened(in.q), widened(in.k), widened(in.v), widened(in.out_gradient)});
  for (size_t part = 0; part < 4; ++part) {
    // One key: dq and dk vanish, their roundings do not; they are those of dout.
    double difference = 0, norm = size.queries == 1 ? static_cast<double>(size.width) : 0.0;
    for (size_t i = 0; i < wide[part].size(); ++i) {
      difference += std::pow(narrow[part][i] - wide[part][i], 2);
      norm += std::pow(wide[part][i], 2);
    }
    EXPECT_LE(std::sqrt(difference / norm), 3 * 0x1p-8)
        << "part " << part << " queries " << size.queries << " width " << size.width;
  }
}

TEST(Bfloat16Kernels, AttentionStaysNearFloats) {
  on_every_target([] {
    for (const bool documents : {false, true})
      for (const int64_t width : {5, 32, 800})
        for (const int64_t queries : {1, 64, 65, 150, 330})
          expect_near_floats({queries, width, documents});
  });
}

}  // namespace
}  // namespace strait::kernel
