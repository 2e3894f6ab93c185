// Sums of bf16: every term and every partial sum in fp32, one rounding at the end.
#include "strait/comm/sums.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace strait::comm {
namespace {

float widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

/// The nearest bf16, by looking at both neighbours; ties to the even one.
uint16_t nearest(float value) {
  const uint16_t below = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  const uint16_t above = static_cast<uint16_t>(below + 1);
  const double down = std::abs(static_cast<double>(value) - widen(below));
  const double up = std::abs(static_cast<double>(widen(above)) - value);
  if (down != up) return down < up ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(Sums, OfBfloat16AreMadeInFloat32) {
  constexpr int64_t kElements = 5000;  // more than one chunk
  std::vector<std::vector<uint16_t>> terms(4);
  for (size_t k = 0; k < terms.size(); ++k)
    for (int64_t i = 0; i < kElements; ++i)
      terms[k].push_back(
          nearest(1.0f / static_cast<float>(1 + (i * 7 + static_cast<int64_t>(k) * 31) % 97)));
  for (size_t count = 2; count <= terms.size(); ++count)
    for (const bool accumulate : {false, true}) {
      std::vector<const void*> sources;
      for (size_t k = 0; k < count; ++k) sources.push_back(terms[k].data());
      std::vector<uint16_t> result(kElements, nearest(0.3f));
      sum_in_order(Dtype::kBfloat16, sources, result.data(), kElements, accumulate);
      for (int64_t i = 0; i < kElements; ++i) {
        float sum = widen(terms[0][i]);
        for (size_t k = 1; k < count; ++k) sum += widen(terms[k][i]);
        if (accumulate) sum = widen(nearest(0.3f)) + sum;
        ASSERT_EQ(result[i], nearest(sum)) << i;
      }
    }
}

TEST(Sums, OfBfloat16KeepWhatIsNotFinite) {
  const uint16_t nan = 0x7f81, infinity = 0x7f80, one = 0x3f80;
  std::vector<uint16_t> left = {nan, infinity, infinity},
                        right = {one, one, static_cast<uint16_t>(infinity | 0x8000)};
  std::vector<uint16_t> result(3);
  sum_in_order(Dtype::kBfloat16, {left.data(), right.data()}, result.data(), 3, false);
  EXPECT_TRUE(std::isnan(widen(result[0])));
  EXPECT_EQ(result[1], infinity);
  EXPECT_TRUE(std::isnan(widen(result[2])));
}

}  // namespace
}  // namespace strait::comm
