// Functions of the part that is loaded: bound behind their definition, or not to be had.
#include "strait/base/provided.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "strait/base/errors.h"

namespace strait {
namespace {

constinit Provided<int(const std::unique_ptr<int>& left, std::unique_ptr<int> right)> sum;
const Provides kSum(
    sum,
    +[](const std::unique_ptr<int>& left, std::unique_ptr<int> right) { return *left + *right; });

TEST(Provided, FunctionsAreBoundBeforeMain) {
  EXPECT_EQ(sum(std::make_unique<int>(3), std::make_unique<int>(4)), 7);
}

/// This program neither links the part nor has it beside it.
TEST(Provided, AMissingPartIsNamedEachTime) {
  const Provided<void()> missing;
  for (int call = 0; call < 2; ++call) {
    try {
      missing();
      FAIL() << "loaded";
    } catch (const InputOutputError& error) {
      EXPECT_EQ(error.place().file.value_or(""), "libstrait_torch.so");
      EXPECT_THAT(error.what(), testing::HasSubstr("LibTorch"));
    }
  }
}

}  // namespace
}  // namespace strait
