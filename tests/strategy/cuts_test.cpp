// Cuts of a chain: the longest run is as short as it can be, against all cuts that there are.
#include "strait/strategy/pipeline/cuts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "strait/base/random.h"

namespace strait::strategy {
namespace {

double longest_run(const std::vector<double>& seconds, const std::vector<int64_t>& cuts) {
  double longest = 0, sum = 0;
  size_t next = 0;
  for (size_t block = 0; block < seconds.size(); ++block) {
    if (next < cuts.size() && static_cast<int64_t>(block) == cuts[next]) {
      sum = 0;
      ++next;
    }
    longest = std::max(longest, sum += seconds[block]);
  }
  return longest;
}

/// Of all cuts behind `first`, by trying them.
double least(const std::vector<double>& seconds, int64_t runs, std::vector<int64_t> cuts = {}) {
  if (static_cast<int64_t>(cuts.size()) == runs - 1) return longest_run(seconds, cuts);
  double best = 1e30;
  const int64_t first = cuts.empty() ? 2 : cuts.back() + 1;
  for (int64_t cut = first; cut + 1 < static_cast<int64_t>(seconds.size()); ++cut) {
    std::vector<int64_t> more = cuts;
    more.push_back(cut);
    best = std::min(best, least(seconds, runs, more));
  }
  return best;
}

TEST(Cuts, EqualBlocksAreCutEvenly) {
  EXPECT_EQ(balanced_cuts({0, 1, 1, 1, 1, 0}, 2), (std::vector<int64_t>{3}));
  EXPECT_EQ(balanced_cuts({0, 1, 1, 1, 1, 0}, 4), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(balanced_cuts({0, 1, 1, 1, 1, 0.5}, 2), (std::vector<int64_t>{3}));
  EXPECT_EQ(balanced_cuts({0, 1, 1, 1, 1, 0}, 1), (std::vector<int64_t>{}));
}

TEST(Cuts, AHeadTakesThePlaceOfBlocks) {
  EXPECT_EQ(balanced_cuts({0, 1, 1, 1, 1, 2}, 2), (std::vector<int64_t>{4}));
  EXPECT_EQ(balanced_cuts({3, 1, 1, 1, 1, 0}, 2), (std::vector<int64_t>{2}));
}

TEST(Cuts, TheLongestRunIsAsShortAsItCanBe) {
  const RandomStream stream(1, "cuts");
  uint64_t next = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<double> seconds;
    for (int64_t block = 0; block < 9; ++block)
      seconds.push_back(static_cast<double>(stream.below(next++, 8)) / 2 + (block % 8 > 0));
    const auto runs = static_cast<int64_t>(1 + stream.below(next++, 7));
    const std::vector<int64_t> cuts = balanced_cuts(seconds, runs);
    ASSERT_EQ(static_cast<int64_t>(cuts.size()), runs - 1);
    EXPECT_DOUBLE_EQ(longest_run(seconds, cuts), least(seconds, runs));
    int64_t before = 1;
    for (const int64_t cut : cuts) {
      EXPECT_GT(cut, before) << "a run without a block";
      before = cut;
    }
    EXPECT_LT(before, 8);
  }
}

TEST(Cuts, ManyBlocksTakeLittleTime) {
  std::vector<double> seconds(100'002, 1.0);
  seconds.front() = seconds.back() = 0;
  const std::vector<int64_t> cuts = balanced_cuts(seconds, 1000);
  EXPECT_EQ(cuts.front(), 101);
  EXPECT_EQ(cuts.back(), 99'901);
}

}  // namespace
}  // namespace strait::strategy
