// Routes between nodes against published and derived figures.
#include "strait/sequence/routing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace strait::sequence {
namespace {

/// Links between nodes of rate 1, inside of rate 1 / ratio; no latency.
double gain(int64_t proxies, int64_t pieces, double ratio) {
  return 1 / route_seconds(1, proxies, pieces, {ratio, 1, 0, 0});
}

TEST(RoutingTest, GainsAreTheClosedForms) {
  EXPECT_NEAR(gain(4, 1, 1.0 / 16), 4 / (1 + 6.0 / 16), 1e-12);
  EXPECT_NEAR(gain(4, 1, 1.0 / 16), 2.9, 0.05);
  EXPECT_NEAR(gain(8, 1, 1.0 / 16), 4.3, 0.05);
  EXPECT_NEAR(gain(8, 4, 1.0 / 16), 6.6, 0.05);
  EXPECT_NEAR(gain(8, 32, 1.0 / 16), 7.8, 0.05);
  EXPECT_EQ(gain(1, 1, 1.0 / 16), 1);
}

/// One sequence of 64k tokens on 16 ranks, 30B model, on a node of 8 links of 400 Gbit/s and 450
/// GB/s inside: a ring round takes 2.18 ms on one link; 411 us routed, 5.3 times less.
TEST(RoutingTest, TheRoundOfAPublishedRingWithin5Percent) {
  const double bytes = 4096.0 * 2 * 6656 * 2;
  const RouteLinks links{1 / 450e9, 1 / 50e9, 0, 0};
  const double direct = route_seconds(bytes, 1, 1, links),
               routed = route_seconds(bytes, 8, 3, links);
  EXPECT_NEAR(direct, 2.18e-3, 0.05 * 2.18e-3);
  EXPECT_NEAR(routed, 411e-6, 0.05 * 411e-6);
  EXPECT_NEAR(direct / routed, 5.3, 0.05 * 5.3);
  EXPECT_NEAR(direct / route_seconds(bytes, 8, 1, links), 3.1, 0.05 * 3.1);
  EXPECT_NEAR(direct / route_seconds(bytes, 8, 4, links), 5.8, 0.05 * 5.8);
}

TEST(RoutingTest, TheBestRouteIsDirectWhereLatencyCostsMore) {
  const RouteLinks links{1e-9, 1.6e-8, 1e-5, 1e-4};
  EXPECT_EQ(best_route(100, 8, 32, links).proxies, 1);
  const Route large = best_route(1e9, 8, 32, links);
  EXPECT_EQ(large.proxies, 8);
  EXPECT_GT(large.pieces, 1);
  EXPECT_EQ(large.seconds, route_seconds(1e9, large.proxies, large.pieces, links));
}

/// Z6: bytes between nodes do not depend on the route; loads of links differ by one piece.
TEST(RoutingTest, PiecesCoverEveryByteOnceAndLoadsAreEven) {
  for (int64_t proxies = 1; proxies <= 8; ++proxies)
    EXPECT_EQ(route_bytes(1001, proxies).between, 1001);
  EXPECT_EQ(route_bytes(1000, 1).inside, 0);
  EXPECT_EQ(route_bytes(1000, 4).inside, 750);
  const std::vector<int64_t> messages = {1000, 0, 37, 640, 64};
  for (const int64_t links : {1, 2, 3, 8}) {
    std::vector<int64_t> at(messages.size(), 0), count(static_cast<size_t>(links), 0);
    for (const Piece& piece : deal_pieces(messages, links, 64)) {
      ASSERT_EQ(piece.begin, at[static_cast<size_t>(piece.message)]);
      ASSERT_LE(piece.bytes, 64);
      at[static_cast<size_t>(piece.message)] += piece.bytes;
      ++count[static_cast<size_t>(piece.link)];
    }
    EXPECT_EQ(at, messages);
    EXPECT_LE(std::ranges::max(count) - std::ranges::min(count), 1);
  }
}

/// Z6: every row is in one chunk, and chunks of neighbouring proxies cross between pairs of ranks
/// of their own.
TEST(RoutingTest, ChunksGoOverProxiesInTurn) {
  for (const int64_t rows : {0, 1, 5, 64, 1001})
    for (const int64_t proxies : {1, 2, 4})
      for (const int64_t pieces : {1, 3}) {
        const RoutedRows routed = routed_rows(rows, proxies, pieces);
        const int64_t all = std::max<int64_t>(1, rows);
        ASSERT_GT(routed.chunks() * routed.grain, all - 1);
        ASSERT_LE((routed.chunks() - 1) * routed.grain, all - 1);
        ASSERT_LE(routed.chunks(), proxies * pieces);
        ASSERT_EQ(routed.dispatched() == 0, proxies == 1 || all == 1);
      }
  EXPECT_EQ(routed_rows(64, 4, 2).dispatched(), 48);
  const RankGrid grid{3, 4};
  EXPECT_EQ(crossing_of(0, 4, {3, 4}, grid), (Crossing{3, 4}));
  EXPECT_EQ(crossing_of(1, 4, {3, 4}, grid), (Crossing{0, 5}));
  EXPECT_EQ(crossing_of(7, 4, {3, 4}, grid), (Crossing{2, 7}));
  EXPECT_EQ(crossing_of(5, 2, {11, 0}, grid), (Crossing{8, 1}));
}

/// The ring of each part has every member once, its nodes one behind the other, and crosses from
/// ranks of its own to ranks of its own.
TEST(RoutingTest, PartsOfARingCrossBetweenRanksOfTheirOwn) {
  for (const int64_t per_node : {2, 3, 4, 8})
    for (const int64_t nodes : {2, 3})
      for (int64_t parts = 1; parts <= per_node; ++parts) {
        std::set<int32_t> senders, receivers;
        for (int64_t part = 0; part < parts; ++part) {
          const std::vector<int32_t> members =
              rotated_members(nodes * per_node, per_node, part, parts);
          std::vector<int32_t> sorted = members, all(members.size());
          std::ranges::sort(sorted);
          std::iota(all.begin(), all.end(), 0);
          ASSERT_EQ(sorted, all);
          if (part == 0) {
            ASSERT_EQ(members, all);
          }
          int64_t crossings = 0;
          for (size_t at = 0; at < members.size(); ++at) {
            const int32_t from = members[at], to = members[(at + 1) % members.size()];
            if (from / per_node == to / per_node) continue;
            ++crossings;
            EXPECT_TRUE(senders.insert(from).second);
            EXPECT_TRUE(receivers.insert(to).second);
          }
          ASSERT_EQ(crossings, nodes);
        }
      }
}

TEST(RoutingTest, KeyHeadsOfPartsDifferByOneAtMost) {
  for (int64_t all = 1; all <= 12; ++all)
    for (int64_t parts = 1; parts <= all; ++parts) {
      int64_t next = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const KeyHeads heads = key_heads_of(part, parts, all);
        EXPECT_EQ(heads.begin, next);
        EXPECT_GE(heads.size(), all / parts);
        EXPECT_LE(heads.size(), (all + parts - 1) / parts);
        next = heads.end;
      }
      EXPECT_EQ(next, all);
    }
}

/// As many links as parts carry one each; the links of a node are what they share, and inside a
/// node everything passes.
TEST(RoutingTest, PartsGainWhatTheirLinksCarry) {
  const auto seconds = [](int64_t parts, int64_t key_heads, int64_t links, double inside) {
    return rotated_seconds(1, parts, key_heads, {inside, 1, 0, 0, links});
  };
  EXPECT_EQ(seconds(1, 8, 4, 1.0 / 16), 1);
  EXPECT_EQ(seconds(4, 8, 4, 1.0 / 16), 1.0 / 4);
  EXPECT_EQ(seconds(4, 6, 4, 1.0 / 16), 2.0 / 6);  // 1, 2, 1 and 2 heads
  EXPECT_EQ(seconds(4, 8, 2, 1.0 / 16), 1.0 / 2);
  EXPECT_EQ(seconds(4, 8, 4, 1.0 / 2), 1.0 / 2);
  EXPECT_EQ(best_rotation(1, 1, 8, 8, {1.0 / 16, 1, 0, 0, 8}), 8);
  EXPECT_EQ(best_rotation(1, 1, 8, 6, {1.0 / 16, 1, 0, 0, 8}), 6);
  EXPECT_EQ(best_rotation(1, 1, 8, 8, {1.0 / 4, 1, 0, 0, 8}), 4);
  EXPECT_EQ(best_rotation(1, 1, 8, 8, {1, 1, 0, 0, 8}), 1);
  EXPECT_EQ(best_rotation(1, 2, 8, 8, {1, 1, 0, 0, 8}), 2);
}

/// Two orders over two proxies each carry on four links what four proxies do, and dispatch a third
/// of it; with as many key heads as links orders alone are faster.
TEST(RoutingTest, OrdersOverProxiesShareTheDispatch) {
  const auto both = [](int64_t parts, int64_t key_heads, Route route, double inside,
                       int64_t links = 4) {
    return rotated_route_seconds(1, parts, key_heads, route, {inside, 1, 0, 0, links});
  };
  const double ratio = 1.0 / 16;
  EXPECT_EQ(both(2, 2, {2, 1}, ratio), 2 * ratio / 4 + 1.0 / 4);
  EXPECT_LT(both(2, 2, {2, 1}, ratio), route_seconds(1, 4, 1, {ratio, 1, 0, 0, 4}));
  EXPECT_EQ(both(2, 2, {2, 4}, ratio), (2 * ratio / 4 + 1.0 / 4) / 4 + 3.0 / 4 / 4);
  EXPECT_GT(both(2, 4, {2, 4}, ratio), both(4, 4, {}, ratio));
  EXPECT_EQ(both(2, 3, {2, 1}, ratio), 2 * ratio * 2 / 3 / 2 + 2.0 / 3 / 2);
  EXPECT_EQ(both(2, 2, {2, 1}, ratio, 2), 2 * ratio / 4 + 1.0 / 2);
  EXPECT_EQ(both(2, 2, {2, 8}, 1), 1);  // everything passes inside a node
  EXPECT_EQ(both(2, 2, {}, ratio), rotated_seconds(1, 2, 2, {ratio, 1, 0, 0, 4}));
}

TEST(RoutingTest, RingsOfWholeNodesAreRouted) {
  Plan plan{{2, 2}, {100}, {{.zone = Zone::kInter, .ranks = {0, 1, 2, 3}, .documents = {0}}}};
  Group& group = plan.groups.front();
  EXPECT_FALSE(is_routed(plan, group));
  plan.proxies = 2;
  EXPECT_TRUE(is_routed(plan, group));
  EXPECT_FALSE(is_rotated(plan, group));
  plan.rotations = 2;
  EXPECT_TRUE(is_rotated(plan, group));
  group.ranks = {1, 2};
  EXPECT_FALSE(is_rotated(plan, group));
  EXPECT_FALSE(is_routed(plan, group));
  group.ranks = {0, 1, 2};
  EXPECT_FALSE(is_routed(plan, group));
  group.ranks = {0, 1};
  EXPECT_FALSE(is_routed(plan, group));
}

}  // namespace
}  // namespace strait::sequence
