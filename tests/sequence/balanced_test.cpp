// Plans that keep to a capacity: balanced ones hold any batch, hybrid ones split by length.
#include "strait/sequence/balanced.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/sequence/waits.h"

namespace strait::sequence {
namespace {

int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

/// 1 to 300 documents: of one length, of few tokens, or some as long as all others together.
std::vector<int64_t> random_lengths(const RandomStream& stream) {
  const auto documents = 1 + stream.below(0, 300);
  const uint64_t kind = stream.below(1, 3), longest = 1 + stream.below(2, 3000);
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; i < documents; ++i) {
    const uint64_t most = kind == 0 ? 1 : kind == 1 || i % 40 > 0 ? 1 + longest / 50 : longest;
    lengths.push_back(static_cast<int64_t>((kind == 0 ? longest : 1) + stream.below(3 + i, most)));
  }
  return lengths;
}

int64_t tokens_of(const Plan& plan) {
  int64_t tokens = 0;
  for (const Load& load : loads(plan)) tokens += load.tokens;
  return tokens;
}

TEST(BalancedPlan, AnyBatchFitsInTheCapacityThatIsEnough) {
  for (uint64_t number = 0; number < 400; ++number) {
    SCOPED_TRACE(number);
    const RandomStream stream(31, "test.balanced", number);
    const std::vector<int64_t> lengths = random_lengths(stream);
    const RankGrid grid{1 + static_cast<int64_t>(stream.below(1000, 4)),
                        1 + static_cast<int64_t>(stream.below(1001, 8))};
    const Plan plan = balanced_plan(lengths, grid);
    EXPECT_EQ(tokens_of(plan), sum_of(lengths));
    EXPECT_LE(most_tokens(plan), enough_capacity(sum_of(lengths), grid.ranks()));
    EXPECT_EQ(find_circle(plan, meetings(plan)), "");
  }
  EXPECT_TRUE(balanced_plan(std::vector<int64_t>{}, {1, 4}).groups.empty());
}

/// Where zones fit nowhere, and the nearest capacity that is named holds the batch.
TEST(BalancedPlan, PartitionsFallBackOnIt) {
  const auto refused_at = [](const std::vector<int64_t>& lengths, int64_t capacity) {
    try {
      partition(lengths, {{1, 4}, capacity, 1, 1});
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key, "sequence.capacity_tokens");
      return true;
    }
    return false;
  };
  for (uint64_t number = 0; number < 100; ++number) {
    SCOPED_TRACE(number);
    const std::vector<int64_t> lengths = random_lengths({32, "test.balanced", number});
    const int64_t most = most_tokens(balanced_plan(lengths, {1, 4}));
    EXPECT_FALSE(refused_at(lengths, most));
    EXPECT_TRUE(refused_at(lengths, (sum_of(lengths) - 1) / 4));
  }
}

TEST(HybridPlan, ADocumentIsSplitByItsShareOfTheSquares) {
  const auto rings = [](const std::vector<int64_t>& lengths, int64_t capacity) {
    std::vector<size_t> sizes;
    for (const Group& group : baseline_plan(lengths, {{1, 4}, capacity}, Baseline::kHybrid).groups)
      if (group.ranks.size() > 1) sizes.push_back(group.ranks.size());
    std::ranges::sort(sizes);
    return sizes;
  };
  using Sizes = std::vector<size_t>;
  EXPECT_EQ(rings({800, 100, 100, 100}, 10000), Sizes({4}));
  EXPECT_EQ(rings({600, 600, 100, 100}, 10000), Sizes({2, 2}));
  EXPECT_EQ(rings({300, 300, 300, 300}, 10000), Sizes());
  EXPECT_EQ(rings({100, 100, 100, 100, 100}, 130), Sizes({4}));  // fewer have no room for the last
}

/// Squares alone give a rank nearly all short documents.
TEST(HybridPlan, TheCapacityIsKeptWhilePlacing) {
  std::vector<int64_t> lengths = {300, 290};
  lengths.insert(lengths.end(), 60, 10);
  EXPECT_TRUE(fits(baseline_plan(lengths, {{1, 3}, 420}, Baseline::kHybrid), 420));
  for (uint64_t number = 0; number < 200; ++number) {
    const std::vector<int64_t> drawn = random_lengths({33, "test.hybrid", number});
    const int64_t capacity = sum_of(drawn) / 8 + std::ranges::max(drawn);
    EXPECT_TRUE(fits(baseline_plan(drawn, {{2, 4}, capacity}, Baseline::kHybrid), capacity))
        << number;
  }
}

}  // namespace
}  // namespace strait::sequence
