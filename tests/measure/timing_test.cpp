// Interleaving, repeats of short calls, and what happens to contenders that fail.
#include "strait/measure/timing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"

namespace strait::measure {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Contender recording(const std::string& name, std::string& order, double seconds) {
  return {name, "1",
          [name, &order, seconds] {
            order += name;
            return seconds;
          },
          ""};
}

TEST(Timing, InterleavesAndRotatesTheStart) {
  std::string order;
  const TimingOptions options{.warmups = 1, .runs = 5, .minimum_run_seconds = 0.0};
  const auto timings = time_interleaved(
      {recording("a", order, 1), recording("b", order, 2), recording("c", order, 3)}, options);
  EXPECT_EQ(order,
            "abc"
            "abc"
            "bca"
            "cab"
            "abc"
            "bca");
  ASSERT_THAT(timings, SizeIs(3));
  EXPECT_THAT(timings[1].seconds, ElementsAre(2, 2, 2, 2, 2));
  EXPECT_EQ(timings[2].name, "c");
  EXPECT_EQ(timings[2].version, "1");
}

TEST(Timing, RepeatsShortCallsAndGivesSecondsPerCall) {
  int64_t calls = 0;
  const Contender quick{"quick", "",
                        [&] {
                          ++calls;
                          return 0.25e-3;
                        },
                        ""};
  const auto timings =
      time_interleaved({quick}, {.warmups = 3, .runs = 5, .minimum_run_seconds = 2e-3});
  EXPECT_EQ(calls, 3 + 5 * 8);
  for (const double seconds : timings[0].seconds) EXPECT_NEAR(seconds, 0.25e-3, 1e-12);
}

TEST(Timing, CallsThatDoManyPiecesAreRepeatedLess) {
  int64_t calls = 0;
  const Contender many{"many", "",
                       [&] {
                         ++calls;
                         return 1e-5;
                       },
                       "", 50};
  time_interleaved({many}, {.warmups = 1, .runs = 5, .minimum_run_seconds = 2e-3});
  EXPECT_EQ(calls, 1 + 5 * 4);
}

TEST(Timing, PeersThatFailBecomeMissing) {
  std::string order;
  int64_t calls = 0;
  const Contender absent{"absent", "", nullptr, "not installed"};
  const Contender dead{"dead", "", []() -> double { throw PeerLost("it died at once"); }, ""};
  const Contender mortal{"mortal", "",
                         [&calls]() -> double {
                           if (++calls == 4) throw Timeout("too slow");
                           return 1.0;
                         },
                         ""};
  const auto timings =
      time_interleaved({recording("a", order, 1), absent, dead, mortal}, {.warmups = 1});
  EXPECT_EQ(timings[0].seconds.size(), 7u);
  EXPECT_EQ(timings[1].missing, "not installed");
  EXPECT_EQ(timings[2].missing, "it died at once");
  EXPECT_EQ(timings[3].missing, "too slow");
  EXPECT_TRUE(timings[3].seconds.empty());
  EXPECT_EQ(calls, 4);  // it is not asked again
}

TEST(Timing, ErrorsOfTheFirstAreThrown) {
  const Contender wrong{"ours", "", []() -> double { throw UserError("no such model"); }, ""};
  EXPECT_THROW(time_interleaved({wrong}, {}), UserError);
}

TEST(Timing, RefusesFewRuns) {
  std::string order;
  try {
    time_interleaved({recording("a", order, 1)}, {.runs = 4});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nearest valid choice: 5"));
  }
  EXPECT_EQ(order, "");
}

TEST(Timing, TimedReadsTheClockAroundTheWork) {
  int64_t calls = 0;
  const auto run = timed([&] { ++calls; });
  EXPECT_GE(run(), 0.0);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace strait::measure
