// Threads wait for a condition, with and without a deadline.
#include "strait/comm/signal.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace strait::comm {
namespace {

/// Also once the clock has stood, when no time of it is as late as the last of steady time.
TEST(Signal, WithoutADeadlineNobodyLooksAtTheClock) {
  const auto sleep = [](double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  };
  WaitClock clock;
  sleep(1.2 * WaitClock::kGapSeconds);
  clock.now();
  ASSERT_LT(clock.now(), std::chrono::steady_clock::now() - std::chrono::seconds(1));
  Signal signal(0);
  std::atomic<bool> done{false};
  std::atomic<int64_t> looks{0};
  std::jthread notifier([&] {
    sleep(3 * WaitClock::kLookSeconds);
    done.store(true);
    signal.notify();
  });
  const auto ready = [&] {
    ++looks;
    return done.load();
  };
  EXPECT_TRUE(signal.wait(ready, clock, SteadyTime::max()));
  EXPECT_LT(looks.load(), 6) << "it polled";
}

TEST(Signal, ADeadlineOnTheClockEndsTheWait) {
  WaitClock clock;
  Signal signal(0);
  const double began = now_seconds();
  EXPECT_FALSE(signal.wait([] { return false; }, clock, clock.deadline_after(0.3)));
  EXPECT_GE(now_seconds() - began, 0.29);
}

}  // namespace
}  // namespace strait::comm
