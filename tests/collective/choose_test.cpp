// The price of a collective against arithmetic by hand, and the algorithm it leads to.
#include "strait/collective/choose.h"

#include <gtest/gtest.h>

#include "strait/collective/nesting.h"
#include "strait/collective/traffic.h"

namespace strait::collective {
namespace {

/// 4 hosts of 2 ranks; inside 10 GB/s and 1 us, across 0.1 GB/s and 50 us.
Cluster hosts() {
  Cluster cluster;
  cluster.levels = {{"node", 2, 10e9, 1e-6, 1}, {"world", 4, 0.1e9, 50e-6, 1}};
  cluster.ranks = 8;
  return cluster;
}

const std::vector<int64_t> kAll = {0, 1, 2, 3, 4, 5, 6, 7};

TEST(Choose, SpreadCountsMembersWithinEachLevel) {
  EXPECT_EQ(spread_of(hosts(), kAll), (Spread{2, 8}));
  EXPECT_EQ(spread_of(hosts(), {0, 2, 4, 6}), (Spread{1, 4}));
  EXPECT_EQ(spread_of(hosts(), {2, 3}), (Spread{2, 2}));
  EXPECT_EQ(spread_of(hosts(), {1, 2, 3}), (Spread{2, 3}));
}

TEST(Choose, RelativeTrafficIsThatOfTheSchedules) {
  for (const Algorithm algorithm : {Algorithm::kDirect, Algorithm::kHierarchical})
    for (const Operation operation :
         {Operation::kAllGather, Operation::kReduceScatter, Operation::kAllReduce}) {
      const Request request{
          operation, algorithm, 8, std::vector<int64_t>(8, 5), 0, 0, nest_of(hosts(), kAll)};
      const std::vector<int64_t> walked = elements_by_level(request, hosts(), kAll);
      const std::vector<double> relative =
          relative_traffic(operation, algorithm, spread_of(hosts(), kAll));
      for (size_t level = 0; level < 2; ++level)
        EXPECT_EQ(relative[level] * 40, static_cast<double>(walked[level]));
    }
}

TEST(Choose, RelativeTrafficOfAShiftIsThatOfItsDistance) {
  for (int64_t skipped = 0; skipped < 7; ++skipped) {
    const Request request{Operation::kShift, Algorithm::kDirect, 8, {5}, skipped, 0, {}};
    const std::vector<int64_t> walked = elements_by_level(request, hosts(), kAll);
    const std::vector<double> relative =
        relative_traffic(Operation::kShift, Algorithm::kDirect, spread_of(hosts(), kAll), skipped);
    for (size_t level = 0; level < 2; ++level)
      EXPECT_EQ(relative[level] * 5, static_cast<double>(walked[level])) << skipped;
  }
}

TEST(Choose, SecondsAreTheArithmeticOfTheLinks) {
  const Spread all = {2, 8};
  // Direct: each of a host's two ranks takes 6/8 of the vector over the host's link.
  EXPECT_NEAR(transfer_seconds(Operation::kAllGather, Algorithm::kDirect, 8e6, all, hosts()),
              2 * 6e6 / 0.1e9 + 50e-6, 1e-12);
  // Hierarchical: the host takes 6/8 once; then each rank takes half of the vector from its
  // neighbour.
  EXPECT_NEAR(transfer_seconds(Operation::kAllGather, Algorithm::kHierarchical, 8e6, all, hosts()),
              6e6 / 0.1e9 + 4e6 / 10e9 / 7 + 51e-6 + 6 * 50e-6, 1e-12);
  EXPECT_EQ(transfer_seconds(Operation::kAllGather, Algorithm::kDirect, 8e6, {1, 1}, hosts()), 0);
}

TEST(Choose, PiecesHideTheInnerLevelsOfLongVectors) {
  for (const auto& [megabytes, pieces] :
       std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 1}, {2, 2}, {7, 7}, {8, 8}, {1000, 8}})
    EXPECT_EQ(pieces_of(megabytes << 20), pieces) << megabytes;
  const double bytes = 16 << 20;
  EXPECT_NEAR(
      transfer_seconds(Operation::kAllGather, Algorithm::kHierarchical, bytes, {2, 8}, hosts()),
      bytes * 6 / 8 / 0.1e9 + bytes / 2 / 10e9 / 8 + 51e-6 + 7 * 50e-6, 1e-12);
  Request request;
  request.operation = Operation::kAllGather;
  request.members = 8;
  request.counts.assign(8, 1 << 19);
  choose_form(request, 16 << 20, hosts(), kAll);
  EXPECT_EQ(request.algorithm, Algorithm::kHierarchical);
  EXPECT_EQ(request.pieces, 8);
}

/// Of a node of two, one sends to the next rank of the ring around the world, both two ranks on.
TEST(Choose, AMessageSharesLinksWithThoseThatGoAsFarAround) {
  const auto seconds = [](int64_t from, int64_t to) {
    return message_seconds(1e6, {from, to, 8}, hosts());
  };
  const double alone = 50e-6 + 1e6 / 0.1e9, shared = 50e-6 + 2e6 / 0.1e9;
  EXPECT_DOUBLE_EQ(seconds(1, 2), alone);
  EXPECT_DOUBLE_EQ(seconds(7, 0), alone);
  EXPECT_DOUBLE_EQ(seconds(0, 2), shared);
  EXPECT_DOUBLE_EQ(seconds(6, 0), shared);
  EXPECT_DOUBLE_EQ(seconds(0, 1), 1e-6 + 1e6 / 10e9);
  // One message takes one link, however many there are.
  Cluster several = hosts();
  for (const int64_t links : {2, 4}) {
    several.levels[1].links = links;
    EXPECT_DOUBLE_EQ(message_seconds(1e6, {1, 2, 8}, several), alone);
    EXPECT_DOUBLE_EQ(message_seconds(1e6, {0, 2, 8}, several), alone);
  }
}

TEST(Choose, HierarchicalWhereTheOuterLinksAreTheNarrowOnes) {
  EXPECT_EQ(choose(Operation::kAllGather, 8e6, {2, 8}, hosts()), Algorithm::kHierarchical);
  EXPECT_EQ(choose(Operation::kReduceScatter, 8e6, {2, 8}, hosts()), Algorithm::kHierarchical);
  EXPECT_EQ(choose(Operation::kAllReduce, 8e6, {2, 8}, hosts()), Algorithm::kHierarchical);
  EXPECT_EQ(choose(Operation::kAllGather, 8e6, {1, 4}, hosts()), Algorithm::kDirect);
  EXPECT_EQ(choose(Operation::kAllGather, 8e6, {2, 2}, hosts()), Algorithm::kDirect);
  EXPECT_EQ(choose(Operation::kAllToAll, 8e6, {2, 8}, hosts()), Algorithm::kDirect);
  // A handful of bytes: the second step costs more than the link.
  EXPECT_EQ(choose(Operation::kAllGather, 8, {2, 8}, hosts()), Algorithm::kDirect);
  Cluster flat = hosts();
  flat.levels[0] = {"node", 2, 0.02e9, 1e-6, 1};
  EXPECT_EQ(choose(Operation::kAllGather, 8e6, {2, 8}, flat), Algorithm::kDirect);
}

/// A millisecond for every exchange over a level whose transfers take processor time.
TEST(Choose, TransfersEndLateWhereTheyShareTheProcessor) {
  Cluster cluster = hosts();
  const Spread all = spread_of(cluster, kAll), inside = spread_of(cluster, {2, 3});
  EXPECT_EQ(late_seconds(Operation::kAllGather, all, cluster), 0);
  cluster.levels[1].processor_share = 0.1;
  EXPECT_EQ(late_seconds(Operation::kShift, all, cluster), 1e-3);
  EXPECT_EQ(late_seconds(Operation::kAllReduce, all, cluster), 2e-3);
  EXPECT_EQ(late_seconds(Operation::kAllReduce, inside, cluster), 0) << "within a host";
  EXPECT_EQ(late_seconds(cluster.levels[0]), 0);
}

}  // namespace
}  // namespace strait::collective
