// Rank threads: all of them run, begin together, keep their thread limit, and hand errors on.
#include "strait/measure/rank_team.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <atomic>
#include <chrono>

#include "strait/base/errors.h"

namespace strait::measure {
namespace {

TEST(RankTeam, RunsEveryRankOncePerCall) {
  for (const int64_t ranks : {1, 2, 3, 8}) {
    RankTeam team(ranks, 1);
    EXPECT_EQ(team.ranks(), ranks);
    std::vector<int64_t> calls(ranks);
    for (int i = 0; i < 20; ++i) team.run([&](int64_t rank) { ++calls[rank]; });
    EXPECT_EQ(calls, std::vector<int64_t>(ranks, 20));
  }
}

TEST(RankTeam, RanksRunAtTheSameTimeAndTheSlowestCounts) {
  RankTeam team(3, 1);
  std::atomic<int64_t> inside{0};
  const double seconds = team.run([&](int64_t rank) {
    ++inside;
    while (inside.load() < 3) std::this_thread::yield();  // hangs unless all three are inside
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  EXPECT_GE(seconds, 0.05);
}

TEST(RankTeam, ThreadsKeepTheirLimit) {
  const int before = omp_get_max_threads();
  RankTeam team(2, 3);
  std::vector<int> limits(2);
  team.run([&](int64_t rank) { limits[rank] = omp_get_max_threads(); });
  EXPECT_EQ(limits, std::vector<int>(2, 3));
  EXPECT_EQ(omp_get_max_threads(), before);
}

TEST(RankTeam, RethrowsTheLowestRanksErrorAndLivesOn) {
  RankTeam team(3, 1);
  try {
    team.run([](int64_t rank) {
      if (rank == 1) throw UserError("one");
      if (rank == 2) throw PeerLost("two");
    });
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "one");
  }
  std::vector<int64_t> calls(3);
  team.run([&](int64_t rank) { ++calls[rank]; });
  EXPECT_EQ(calls, std::vector<int64_t>(3, 1));
}

TEST(ThreadLimit, RestoresTheFormerLimit) {
  const int before = omp_get_max_threads();
  {
    const ThreadLimit limit(before + 4);
    EXPECT_EQ(omp_get_max_threads(), before + 4);
  }
  EXPECT_EQ(omp_get_max_threads(), before);
}

}  // namespace
}  // namespace strait::measure
