#include "strait/base/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace strait {
namespace {

template <class T>
std::optional<int64_t> first_in(Dtype dtype, const std::vector<T>& values) {
  return first_non_finite(dtype, std::as_bytes(std::span(values)));
}

TEST(Finite, FindsTheFirstThatIsNoNumberInEveryType) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(first_in<float>(Dtype::kFloat32, {1, -3e38f, 0, 1e-45f}), std::nullopt);
  EXPECT_EQ(first_in<float>(Dtype::kFloat32, {1, nan, infinity}), 1);
  EXPECT_EQ(first_in<double>(Dtype::kFloat64, {1, 1e308, -infinity}), 2);
  EXPECT_EQ(first_in<uint16_t>(Dtype::kBfloat16, {0x7f7f, 0x3f80, 0xff80}), 2);
  EXPECT_EQ(first_in<uint16_t>(Dtype::kFloat16, {0x7bff, 0x7e01}), 1);
  EXPECT_EQ(first_in<int32_t>(Dtype::kInt32, {0x7f800000}), std::nullopt);
  EXPECT_EQ(first_in<float>(Dtype::kFloat32, {}), std::nullopt);
}

}  // namespace
}  // namespace strait
