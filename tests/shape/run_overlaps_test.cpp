#include "strait/shape/run_overlaps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "strait/base/random.h"

namespace strait {
namespace {

/// Some runs below 60, in a packed order of their own.
ElementRuns random_runs(uint64_t seed) {
  const RandomStream stream(seed, "runs");
  ElementRuns runs;
  int64_t at = static_cast<int64_t>(stream.below(0, 5));
  for (uint64_t i = 1; at < 50; i += 4) {
    const auto length = static_cast<int64_t>(1 + stream.below(i, 4));
    const auto count = static_cast<int64_t>(1 + stream.below(i + 1, 3));
    const int64_t stride = length + static_cast<int64_t>(stream.below(i + 2, 3));
    runs.push_back({at, length, count, count > 1 ? stride : 0});
    at = runs.back().end() + static_cast<int64_t>(stream.below(i + 3, 4));
  }
  std::rotate(runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2),
              runs.end());
  return runs;
}

/// Packed position of every element.
std::map<int64_t, int64_t> positions(const ElementRuns& runs) {
  std::map<int64_t, int64_t> at;
  for_each_run(runs, [&](int64_t begin, int64_t packed, int64_t length) {
    for (int64_t i = 0; i < length; ++i) at[begin + i] = packed + i;
  });
  return at;
}

TEST(RunOverlaps, AreTheElementsThatBothHold) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const ElementRuns a = random_runs(2 * seed), b = random_runs(2 * seed + 1);
    const auto in_a = positions(a), in_b = positions(b);
    std::vector<std::pair<int64_t, int64_t>> want, got;
    for (const auto& [element, at] : in_a)
      if (const auto found = in_b.find(element); found != in_b.end())
        want.emplace_back(at, found->second);
    const std::vector<Overlap> all = overlaps(stretches_of(a), stretches_of(b));
    for (const Overlap& overlap : all)
      for (int64_t i = 0; i < overlap.length; ++i) got.emplace_back(overlap.a + i, overlap.b + i);
    ASSERT_EQ(got, want) << seed;
  }
}

TEST(RunOverlaps, EqualRunsAreOneOverlap) {
  const ElementRuns runs = {{3, 2, 4, 5}, {40, 7, 1, 0}};
  const std::vector<Stretch> stretches = stretches_of(runs);
  EXPECT_EQ(stretches.size(), 5u);
  const std::vector<Overlap> all = overlaps(stretches, stretches);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].length, 15);
  EXPECT_TRUE(overlaps(stretches, {}).empty());
}

}  // namespace
}  // namespace strait
