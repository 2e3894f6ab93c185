// Products of every form agree with long double, and the check sees results that are not there.
#include "strait/measure/gemm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/measure/rank_team.h"

namespace strait::measure {
namespace {

using ::testing::HasSubstr;

std::vector<GemmEngine> engines_of(Dtype dtype) {
  return {GemmEngine::kStrait, other_engine(dtype)};
}

TEST(Gemm, IsRightForEveryFormSizeAndDtype) {
  const int64_t sizes[][3] = {{1, 1, 1}, {3, 5, 7}, {64, 64, 64}, {1, 300, 129}, {257, 33, 500}};
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
    for (const auto& size : sizes) {
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          for (const GemmEngine engine : engines_of(dtype)) {
            Gemm gemm({size[0], size[1], size[2], transpose_a, transpose_b}, dtype, engine);
            EXPECT_THAT(gemm.check(), HasSubstr("nan"));  // nothing computed yet
            gemm.run();
            EXPECT_EQ(gemm.check(), "");
          }
        }
      }
    }
  }
}

TEST(Gemm, IsRightUnderThreadLimits) {
  for (const int64_t threads : {1, 2, 3}) {
    const ThreadLimit limit(threads);
    Gemm gemm({.m = 300, .n = 200, .k = 100}, Dtype::kFloat32);
    gemm.run();
    EXPECT_EQ(gemm.check(), "");
  }
}

TEST(Gemm, CountsTwoOperationsPerMultiplyAdd) {
  EXPECT_EQ((GemmShape{.m = 3, .n = 5, .k = 7}).flops(), 210.0);
}

TEST(Gemm, RefusesOtherTypesAndSizes) {
  EXPECT_THROW(Gemm({.m = 2}, Dtype::kInt32), UserError);
  EXPECT_THROW(Gemm({.m = 0}, Dtype::kFloat32), UserError);
  EXPECT_THROW(Gemm({}, Dtype::kBfloat16, GemmEngine::kBlas), UserError);
  EXPECT_THROW(Gemm({}, Dtype::kFloat32, GemmEngine::kTorch), UserError);
}

}  // namespace
}  // namespace strait::measure
