#include "strait/base/wait_clock.h"

#include <gtest/gtest.h>

#include <thread>

namespace strait {
namespace {

double seconds(SteadyTime::duration time) { return std::chrono::duration<double>(time).count(); }

TEST(WaitClock, GoesOnWhileSomebodyLooksAndStandsStillOtherwise) {
  WaitClock clock;
  const SteadyTime began = clock.now(), really = std::chrono::steady_clock::now();
  for (int look = 0; look < 8; ++look) {
    std::this_thread::sleep_for(std::chrono::duration<double>(WaitClock::kLookSeconds));
    clock.now();
  }
  const double waited = seconds(std::chrono::steady_clock::now() - really);
  EXPECT_NEAR(seconds(clock.now() - began), waited, 0.1);
  const SteadyTime deadline = clock.deadline_after(0.5);
  std::this_thread::sleep_for(std::chrono::duration<double>(1.2 * WaitClock::kGapSeconds));
  EXPECT_EQ(clock.steady(deadline), deadline);
  EXPECT_LT(clock.now(), deadline);
  EXPECT_GT(seconds(clock.steady(deadline) - deadline), WaitClock::kGapSeconds);
}

}  // namespace
}  // namespace strait
