// Deadlines of tests that follow the machine: on one that is slow or busy, a rank that merely waits
// for a core must not look like one that is lost.
#pragma once

#include <ctime>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "strait/base/clock.h"

namespace strait::test {

inline double thread_processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The longest time, in seconds, that one of `threads` threads was kept from a core here and now.
/// Each sleeps and computes a millisecond in turns, as ranks of a small run do, for some 50 ms.
inline double longest_pause(int threads = 4) {
  constexpr double kTurn = 1e-3;
  constexpr int kTurns = 25;
  std::mutex mutex;
  double longest = 0;
  std::vector<std::jthread> all;
  for (int thread = 0; thread < threads; ++thread)
    all.emplace_back([&] {
      double own = 0;
      for (int turn = 0; turn < kTurns; ++turn) {
        const double began = now_seconds();
        std::this_thread::sleep_for(std::chrono::duration<double>(kTurn));
        const double end = thread_processor_seconds() + kTurn;
        while (thread_processor_seconds() < end) continue;
        own = std::max(own, now_seconds() - began - 2 * kTurn);
      }
      const std::lock_guard<std::mutex> lock(mutex);
      longest = std::max(longest, own);
    });
  all.clear();
  return longest;
}

/// A deadline of `seconds` where the machine is idle; longer, at most 30 times, where threads wait
/// for cores: 20 of the pauses that there are now.
inline double deadline_here(double seconds, int threads = 4) {
  return std::clamp(20 * longest_pause(threads), seconds, 30 * seconds);
}

}  // namespace strait::test
