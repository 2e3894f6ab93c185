// A step in the steady state allocates nothing: its buffers come from the pool, the pool takes
// nothing from the system, and no container grows.
#include <gtest/gtest.h>

#include "strait/train/solo_step.h"
#include "tests/counted_allocations.h"

namespace strait::train {
namespace {

Run small_step(const std::string& precision, const std::string& recompute) {
  Run run;
  run.model = model_preset("nano-char");
  run.model.shape.context = 16;
  run.train.global_batch_size = 2;
  run.train.precision = precision;
  run.train.recompute = recompute;
  run.runtime.threads_per_rank = 2;
  return run;
}

TEST(SteadyState, AllocatesNothing) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* recompute : {"none", "block"}) {
      SCOPED_TRACE(std::string(precision) + " " + recompute);
      SoloStep solo(small_step(precision, recompute), 65);
      for (int step = 0; step < 2; ++step) solo.step();
      const int64_t first = solo.pool().system_allocations(), peak = solo.pool().peak_bytes();
      EXPECT_GT(first, 0);
      const int64_t before = test::allocations.load();
      EXPECT_GT(before, 0);
      for (int step = 0; step < 3; ++step) solo.step();
      EXPECT_EQ(test::allocations.load(), before);
      EXPECT_EQ(solo.pool().system_allocations(), first);
      EXPECT_EQ(solo.pool().peak_bytes(), peak);
    }
  }
}

}  // namespace
}  // namespace strait::train
