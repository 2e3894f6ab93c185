// Sums of squares: value, independence from threads, and what non-finite values do.
#include "strait/optim/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/optim/inputs.h"

namespace strait::optim {
namespace {

template <class T>
class NormTest : public ::testing::Test {};
using ElementTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(NormTest, ElementTypes);

// The bound of the header, with the reference in long double (its own error is 2^-11 of that).
TYPED_TEST(NormTest, EqualsThePlainSumAtEveryLength) {
  for (const int64_t length : sample_lengths()) {
    SCOPED_TRACE(length);
    const auto values = sample_values<TypeParam>(length, 5, 3.0);
    long double wanted = 0;
    for (const TypeParam value : values) wanted += static_cast<long double>(value) * value;
    const double bound = (static_cast<double>(length) / 16384 + 1041) * std::ldexp(1.0, -53);
    EXPECT_NEAR(squared_norm(std::span<const TypeParam>(values), 1), static_cast<double>(wanted),
                bound * static_cast<double>(wanted));
  }
}

TYPED_TEST(NormTest, ThreadsDoNotChangeABit) {
  for (const int64_t length : sample_lengths()) {
    const auto values = sample_values<TypeParam>(length, 6, 3.0);
    const double one = squared_norm(std::span<const TypeParam>(values), 1);
    for (const int threads : {0, 2, 3, 8}) {
      EXPECT_EQ(squared_norm(std::span<const TypeParam>(values), threads), one)
          << length << " elements, " << threads << " threads";
    }
  }
}

// The order of the sum is part of the contract: sixteen partial sums inside a chunk, chunks in
// order.
TYPED_TEST(NormTest, HasTheBitsOfTheDocumentedOrder) {
  const auto values = sample_values<TypeParam>(70001, 7, 3.0);
  double total = 0;
  for (int64_t begin = 0; begin < 70001; begin += kNormChunkElements) {
    double sums[16] = {};
    const int64_t end = std::min<int64_t>(begin + kNormChunkElements, 70001);
    for (int64_t i = begin; i < end; ++i) {
      sums[(i - begin) % 16] = std::fma(static_cast<double>(values[i]),
                                        static_cast<double>(values[i]), sums[(i - begin) % 16]);
    }
    double chunk = 0;
    for (const double sum : sums) chunk += sum;
    total += chunk;
  }
  EXPECT_EQ(squared_norm(std::span<const TypeParam>(values), 2), total);
}

TYPED_TEST(NormTest, NonFiniteAnywhereShows) {
  for (const int64_t length : {1, 5, 16, 17, 16385, 40000}) {
    for (const int64_t place : {int64_t{0}, length / 2, length - 1}) {
      auto values = sample_values<TypeParam>(length, 8, 1.0);
      values[place] = std::numeric_limits<TypeParam>::quiet_NaN();
      EXPECT_TRUE(std::isnan(squared_norm(std::span<const TypeParam>(values), 2)));
      values[place] = -std::numeric_limits<TypeParam>::infinity();
      EXPECT_FALSE(std::isfinite(squared_norm(std::span<const TypeParam>(values), 2)));
    }
  }
}

TEST(Norm, LargeFloatsDoNotOverflow) {
  const std::vector<float> values(100, std::numeric_limits<float>::max());
  const double square = std::pow(static_cast<double>(std::numeric_limits<float>::max()), 2);
  EXPECT_NEAR(squared_norm(std::span<const float>(values), 1), 100 * square, 1e-13 * 100 * square);
}

}  // namespace
}  // namespace strait::optim
