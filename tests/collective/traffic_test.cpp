// What is counted on one member's transfers against the walk over all of them.
#include "strait/collective/traffic.h"

#include <gtest/gtest.h>

#include <numeric>

#include "strait/collective/nesting.h"
#include "tests/collective/walked_traffic.h"

namespace strait::collective {
namespace {

/// Levels of sizes 2 and 3 and the rest: ranks 0 1 | 2 3 | 4 5 || 6 7 | ...
Cluster three_levels(int64_t ranks) {
  Cluster cluster;
  cluster.levels = {
      {"pair", 2, 1e9, 0, 1}, {"node", 3, 1e9, 0, 1}, {"world", ranks / 6, 1e9, 0, 1}};
  cluster.ranks = ranks;
  return cluster;
}

std::vector<Request> requests(int64_t members, const Nest& nest) {
  std::vector<int64_t> even(members, 12), uneven(members), square(members * members);
  for (int64_t part = 0; part < members; ++part) uneven[part] = (part * 7 + 5) % 6;
  for (int64_t cell = 0; cell < members * members; ++cell) square[cell] = (cell * 11 + 4) % 7;
  std::vector<Request> result;
  for (const Operation operation :
       {Operation::kAllGather, Operation::kReduceScatter, Operation::kAllReduce})
    for (const auto& counts : {even, uneven}) {
      for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing})
        result.push_back({operation, algorithm, members, counts, 0, 0, {}});
      if (is_power_of_two(members))
        result.push_back({operation, Algorithm::kRecursive, members, counts, 0, 0, {}});
      for (const int64_t pieces : {1, 3})
        result.push_back(
            {operation, Algorithm::kHierarchical, members, counts, 0, 0, nest, pieces});
    }
  result.push_back(
      {Operation::kBroadcast, Algorithm::kHierarchical, members, {9}, members / 2, 0, nest});
  result.push_back({Operation::kAllToAll, Algorithm::kDirect, members, square, 0, 0, {}});
  result.push_back({Operation::kAllToAll, Algorithm::kDirect, members, uneven, 0, 0, {}});
  result.push_back({Operation::kBroadcast, Algorithm::kDirect, members, {9}, members / 2, 0, {}});
  for (int64_t skipped = 0; skipped < std::max<int64_t>(1, members - 1); ++skipped)
    result.push_back({Operation::kShift, Algorithm::kDirect, members, {9}, skipped, 0, {}});
  result.push_back({Operation::kBarrier, Algorithm::kDirect, members, {}, 0, 0, {}});
  if (members > 1) result.push_back({Operation::kSend, Algorithm::kDirect, members, {9}, 1, 0, {}});
  return result;
}

void expect_walk(const std::vector<int64_t>& members, const Cluster& cluster) {
  for (const Request& request :
       requests(static_cast<int64_t>(members.size()), nest_of(cluster, members)))
    EXPECT_EQ(elements_by_level(request, cluster, members),
              walked_by_level(make_schedule(request), cluster, members))
        << algorithm_name(request.algorithm) << " " << operation_name(request.operation) << " of "
        << members.size() << " from " << members.front();
}

TEST(Traffic, OneMemberStandsForAllWhereTheyLieEvenly) {
  const Cluster cluster = three_levels(24);
  int64_t even = 0;
  for (const int64_t size : {1, 2, 3, 4, 6, 8, 12, 24})
    for (const int64_t stride : {1, 2, 3, 4, 6, 12}) {
      if (24 % (size * stride) != 0) continue;
      for (int64_t base = 0; base < 24; ++base) {
        if (base / stride % size != 0) continue;
        std::vector<int64_t> members;
        for (int64_t at = 0; at < size; ++at) members.push_back(base + at * stride);
        even += lies_evenly(cluster, members) ? 1 : 0;
        expect_walk(members, cluster);
      }
    }
  EXPECT_GT(even, 100);
}

TEST(Traffic, MembersThatLieUnevenlyAreAllCounted) {
  const std::vector<std::vector<int64_t>> groups = {
      {4, 5, 6}, {0, 2, 4, 6}, {0, 1, 5, 6, 20}, {3, 4, 5, 6, 7, 8, 9, 10}};
  for (const auto& members : groups) {
    EXPECT_FALSE(lies_evenly(three_levels(24), members));
    expect_walk(members, three_levels(24));
  }
}

TEST(Traffic, TotalsAreTheClosedForms) {
  for (const int64_t n : {1, 2, 3, 6, 12, 24}) {
    std::vector<int64_t> all(n), counts(n);
    std::iota(all.begin(), all.end(), 0);
    std::iota(counts.begin(), counts.end(), 5);
    const int64_t v = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    for (const Operation operation :
         {Operation::kAllGather, Operation::kReduceScatter, Operation::kAllReduce}) {
      const std::vector<int64_t> levels = elements_by_level(
          {operation, Algorithm::kDirect, n, counts, 0, 0, {}}, three_levels(24), all);
      EXPECT_EQ(std::accumulate(levels.begin(), levels.end(), int64_t{0}),
                (operation == Operation::kAllReduce ? 2 : 1) * (n - 1) * v);
    }
  }
}

TEST(Traffic, LargeGroupsAreCountedOnOneMember) {
  const int64_t ranks = 6 * 5000;
  std::vector<int64_t> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  const Cluster cluster = three_levels(ranks);
  Request request{
      Operation::kAllReduce, Algorithm::kDirect, ranks, std::vector<int64_t>(ranks, 10), 0, 0, {}};
  EXPECT_EQ(
      elements_by_level(request, cluster, all),
      (std::vector<int64_t>{2 * ranks * 10, 2 * ranks * 10 * 4, 2 * ranks * 10 * (ranks - 6)}));
  request.algorithm = Algorithm::kHierarchical;
  request.nest = nest_of(cluster, all);
  EXPECT_EQ(elements_by_level(request, cluster, all),
            (std::vector<int64_t>{2 * ranks * 10 * 3 * 5000, 2 * ranks * 10 * 2 * 5000,
                                  2 * ranks * 10 * 4999}));
}

}  // namespace
}  // namespace strait::collective
