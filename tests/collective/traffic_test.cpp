// Totals: closed forms written here, the closed forms of the library, and the walk over the
// schedule.
#include "strait/collective/traffic.h"

#include <gtest/gtest.h>

#include <numeric>

#include "strait/collective/nesting.h"

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

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

/// Groups of two inside groups of four.
Nest pairs(int64_t members) {
  Nest nest(2);
  for (int64_t at = 0; at < members; ++at) {
    nest[0].push_back(at / 2);
    nest[1].push_back(at / 4);
  }
  return nest;
}

std::vector<Request> requests(int64_t members, const Nest& nest = {}) {
  std::vector<int64_t> even(members, 12), uneven(members), square(members * members);
  for (int64_t part = 0; part < members; ++part) uneven[part] = (part * 7 + 5) % 6;
  for (int64_t cell = 0; cell < members * members; ++cell) square[cell] = (cell * 11 + 4) % 7;
  std::vector<Request> result;
  for (const Operation operation :
       {Operation::kAllGather, Operation::kReduceScatter, Operation::kAllReduce})
    for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing})
      for (const auto& counts : {even, uneven})
        result.push_back({operation, algorithm, members, counts, 0, 0, {}});
  for (const Operation operation :
       {Operation::kAllGather, Operation::kReduceScatter, Operation::kAllReduce})
    for (const auto& counts : {even, uneven}) {
      if (is_power_of_two(members))
        result.push_back({operation, Algorithm::kRecursive, members, counts, 0, 0, {}});
      result.push_back({operation, Algorithm::kHierarchical, members, counts, 0, 0, nest});
    }
  result.push_back(
      {Operation::kBroadcast, Algorithm::kHierarchical, members, {9}, members / 2, 0, nest});
  result.push_back({Operation::kAllToAll, Algorithm::kDirect, members, square, 0, 0, {}});
  result.push_back({Operation::kBroadcast, Algorithm::kDirect, members, {9}, members / 2, 0, {}});
  result.push_back({Operation::kBarrier, Algorithm::kDirect, members, {}, 0, 0, {}});
  if (members > 1) result.push_back({Operation::kSend, Algorithm::kDirect, members, {9}, 1, 0, {}});
  return result;
}

TEST(Traffic, TotalsAreTheClosedForms) {
  for (const int64_t n : {1, 2, 3, 4, 5, 8}) {
    for (const Request& request : requests(n, pairs(n))) {
      const int64_t v = sum(request.counts);
      int64_t expected = 0, diagonal = 0;
      if (request.operation == Operation::kAllToAll)
        for (int64_t i = 0; i < n; ++i) diagonal += request.counts[i * n + i];
      switch (request.operation) {
        case Operation::kAllGather:
        case Operation::kReduceScatter:
        case Operation::kBroadcast:
          expected = (n - 1) * v;
          break;
        case Operation::kAllReduce:
          expected = 2 * (n - 1) * v;
          break;
        case Operation::kAllToAll:
          expected = v - diagonal;
          break;
        case Operation::kSend:
          expected = v;
          break;
        default:
          break;
      }
      int64_t walked = 0;
      for (const auto& [pair, elements] : elements_per_pair(make_schedule(request)))
        walked += elements;
      EXPECT_EQ(walked, expected) << operation_name(request.operation) << " of " << n;
      EXPECT_EQ(total_elements(request), expected)
          << operation_name(request.operation) << " of " << n;
    }
  }
}

TEST(Traffic, SentAndReceivedPerMemberEqualTheSchedule) {
  for (const int64_t n : {1, 2, 3, 4, 5, 8}) {
    for (const Request& request : requests(n, pairs(n))) {
      std::vector<int64_t> sent(n, 0), received(n, 0);
      for (const auto& [pair, elements] : elements_per_pair(make_schedule(request))) {
        sent[pair.first] += elements;
        received[pair.second] += elements;
      }
      for (int64_t member = 0; member < n; ++member) {
        EXPECT_EQ(sent_elements(request, member), sent[member])
            << algorithm_name(request.algorithm) << " " << operation_name(request.operation) << " "
            << n;
        EXPECT_EQ(received_elements(request, member), received[member])
            << algorithm_name(request.algorithm) << " " << operation_name(request.operation) << " "
            << n;
      }
    }
  }
}

TEST(Traffic, PeersOfAllRanksAreTheFanOuts) {
  const Cluster cluster = three_levels(24);
  std::vector<int64_t> all(24);
  std::iota(all.begin(), all.end(), 0);
  for (const auto& peers : peers_by_level(cluster, all))
    EXPECT_EQ(peers, (std::vector<int64_t>{1, 4, 18}));
  const auto uneven = peers_by_level(cluster, {0, 1, 5, 6, 20});
  EXPECT_EQ(uneven[0], (std::vector<int64_t>{1, 1, 2}));
  EXPECT_EQ(uneven[2], (std::vector<int64_t>{0, 2, 2}));
  EXPECT_EQ(uneven[4], (std::vector<int64_t>{0, 0, 4}));
}

TEST(Traffic, LevelsInClosedFormEqualTheWalk) {
  const Cluster cluster = three_levels(24);
  const std::vector<std::vector<int64_t>> groups = {{0},
                                                    {0, 1},
                                                    {4, 5, 6},
                                                    {0, 2, 4, 6},
                                                    {1, 7, 13, 19},
                                                    {0, 1, 5, 6, 20},
                                                    {3, 4, 5, 6, 7, 8, 9, 10}};
  for (const auto& members : groups) {
    const auto level = [&](int64_t from, int64_t to) {
      return cluster.level_between(members[from], members[to]);
    };
    for (const Request& request :
         requests(static_cast<int64_t>(members.size()), nest_of(cluster, members)))
      EXPECT_EQ(elements_by_level(request, cluster, members),
                elements_by_level(make_schedule(request), level, 3))
          << algorithm_name(request.algorithm) << " " << operation_name(request.operation);
  }
}

TEST(Traffic, ClosedFormsReachLargeGroups) {
  const int64_t ranks = 6 * 2000;
  std::vector<int64_t> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  const Request request{
      Operation::kAllReduce, Algorithm::kDirect, ranks, std::vector<int64_t>(ranks, 10), 0, 0, {}};
  const std::vector<int64_t> expected = {2 * ranks * 10, 2 * ranks * 10 * 4,
                                         2 * ranks * 10 * (ranks - 6)};
  EXPECT_EQ(elements_by_level(request, three_levels(ranks), all), expected);
  EXPECT_EQ(total_elements(request), 2 * (ranks - 1) * ranks * 10);
}

TEST(Traffic, AMutatedScheduleIsNoticed) {
  const Request request{Operation::kAllGather, Algorithm::kDirect, 3, {4, 5, 6}, 0, 0, {}};
  const auto walked = [](const Schedule& schedule) {
    return elements_by_level(
        schedule, [](int64_t, int64_t) { return int64_t{0}; }, 1)[0];
  };
  Schedule twice = make_schedule(request), dropped = twice;
  ASSERT_EQ(walked(twice), total_elements(request));
  const auto remote = [](const Transfer& transfer) { return transfer.from != transfer.to; };
  twice.transfers.push_back(*std::find_if(twice.transfers.begin(), twice.transfers.end(), remote));
  dropped.transfers.erase(std::find_if(dropped.transfers.begin(), dropped.transfers.end(), remote));
  EXPECT_NE(walked(twice), total_elements(request));
  EXPECT_NE(walked(dropped), total_elements(request));
}

}  // namespace
}  // namespace strait::collective
