// Whether memory is there: every rank of this computer counts as much as its class needs.
#include "strait/job/memory_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"

namespace strait {
namespace {

/// A step of `members` that keeps `bytes` bytes.
program::Program class_of(std::vector<int64_t> members, int64_t bytes) {
  program::Program step;
  step.step_kind = strategy::kSteady;
  step.ranks = 4;
  step.members = std::move(members);
  const int64_t elements = bytes / dtype_bytes(Dtype::kFloat32);
  program::ValueArray state{"W", 1, Dtype::kFloat32, {elements, elements}};
  state.lifetime = program::Lifetime::kResident;
  step.arrays.push_back(std::move(state));
  return step;
}

/// Two stages of two ranks; the second needs three times as much.
strategy::Design two_stages() {
  constexpr int64_t kGigabyte = 1'000'000'000;
  strategy::Design design;
  design.run.model = model_preset("nano-char");
  design.batch.ranks = 4;
  design.shape = model_shape(design.run.model, 65);
  design.programs.kinds = {
      {strategy::kSteady, {class_of({0, 1}, kGigabyte), class_of({2, 3}, 3 * kGigabyte)}}};
  design.round = strategy::round_of(design.programs);
  return design;
}

std::string refusal(const std::vector<int64_t>& ranks_here, int64_t has_bytes) {
  try {
    require_memory(two_stages(), ranks_here, has_bytes);
  } catch (const NothingFits& error) {
    return error.what();
  }
  return "";
}

TEST(MemoryCheck, AddsWhatEveryClassNeedsHere) {
  EXPECT_EQ(refusal({0, 1, 2, 3}, 8'000'000'000), "");
  EXPECT_THAT(refusal({0, 1, 2, 3}, 7'999'999'999),
              testing::AllOf(testing::StartsWith("the 4 ranks of this computer need 8 GB"),
                             testing::HasSubstr("the nearest that fits is")));
  EXPECT_EQ(refusal({0, 1}, 2'000'000'000), "");
  EXPECT_THAT(refusal({3}, 2'999'999'999), testing::StartsWith("the 1 rank of this computer"));
}

}  // namespace
}  // namespace strait
