#include "strait/threads/team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <set>
#include <thread>
#include <vector>

#include "strait/threads/cores.h"

namespace strait {
namespace {

std::vector<int> calls_of(int threads) {
  std::vector<int> calls(static_cast<size_t>(threads), 0);
  run_team(threads, [&](int index, int members) {
    EXPECT_EQ(members, threads);
    ++calls[static_cast<size_t>(index)];
  });
  return calls;
}

TEST(Team, RunsEveryPartOnceForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8, 2, 5, 1, 8})
    EXPECT_EQ(calls_of(threads), std::vector<int>(static_cast<size_t>(threads), 1)) << threads;
}

TEST(Team, PartsSeeWhatTheCallerWroteAndTheCallerWhatTheyWrote) {
  std::vector<int64_t> values(4, 0);
  for (int64_t round = 1; round <= 20000; ++round) {
    const int64_t before = values[0];
    run_team(4, [&](int index, int) { values[static_cast<size_t>(index)] = before + 1; });
    for (const int64_t value : values) ASSERT_EQ(value, round);
  }
}

TEST(Team, PartsRunBesideEachOther) {
  std::atomic<int> arrived{0};
  run_team(3, [&](int, int) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 3);
}

TEST(Team, APartThatAsksForATeamIsAlone) {
  std::atomic<int> inner{0};
  run_team(2, [&](int, int) {
    run_team(4, [&](int, int members) {
      EXPECT_EQ(members, 1);
      ++inner;
    });
  });
  EXPECT_EQ(inner, 2);
}

TEST(Team, ThreadsHaveTeamsOfTheirOwn) {
  std::atomic<int64_t> parts{0};
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) run_team(3, [&](int, int) { ++parts; });
    });
  callers.clear();
  EXPECT_EQ(parts, 4 * 500 * 3);
}

TEST(Team, StartsOnTheCoresOfTheCaller) {
  const std::vector<int> last = {usable_cores().back()};
  std::vector<std::vector<int>> seen(2);
  std::jthread([&] {
    const CoreBinding binding(last);
    run_team(2, [&](int index, int) { seen[static_cast<size_t>(index)] = usable_cores(); });
  }).join();
  EXPECT_EQ(seen, std::vector<std::vector<int>>(2, last));
}

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(Team, SleepsWhereItHasNothingToDo) {
  run_team(4, [](int, int) {});
  const double before = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(processor_seconds() - before, 0.02);
}

TEST(Team, WaitsAsleepForASlowPart) {
  const double before = processor_seconds();
  run_team(2, [](int index, int) {
    if (index == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  EXPECT_LT(processor_seconds() - before, 0.02);
}

}  // namespace
}  // namespace strait
