// Rings of runs of neighbours that exchange heads: what ranks hold of them, when they meet, what
// they send, against plain counts (specs: sequences 9d, Z1, Z2, Z5).
#include "strait/sequence/exchanged_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "strait/base/random.h"
#include "strait/sequence/partition.h"
#include "strait/sequence/report.h"

namespace strait::sequence {
namespace {

using Positions = std::vector<std::pair<size_t, int64_t>>;  // document, position; by row

void add(Positions& rows, size_t document, const std::vector<Span>& spans) {
  for (const Span& span : spans)
    for (int64_t position = span.begin; position < span.end; ++position)
      rows.emplace_back(document, position);
}

Plan even(const std::vector<int64_t>& lengths, const RankGrid& grid, int64_t head_ranks) {
  Plan plan = baseline_plan(lengths, {grid, 1 << 20, 1, 1}, Baseline::kEven);
  plan.head_ranks = head_ranks;
  return plan;
}

std::vector<int64_t> drawn_lengths(uint64_t trial) {
  const RandomStream stream(5, "lengths", trial);
  std::vector<int64_t> lengths(1 + stream.below(0, 6));
  for (size_t i = 0; i < lengths.size(); ++i)
    lengths[i] = 1 + static_cast<int64_t>(stream.below(i + 1, i % 2 == 0 ? 12 : 400));
  return lengths;
}

/// Rows of a run's ranks are, each once, those of a member of a ring of runs.
TEST(ExchangedHeads, NeighboursHaveTheRowsOfTheirRun) {
  for (const auto& [nodes, per_node, neighbours] :
       {std::tuple(2, 2, 2), std::tuple(2, 4, 2), std::tuple(3, 4, 4), std::tuple(2, 6, 3)})
    for (uint64_t trial = 0; trial < 60; ++trial) {
      const std::vector<int64_t> lengths = drawn_lengths(trial);
      const Plan plan = even(lengths, {nodes, per_node}, neighbours);
      for (int64_t rank = 0; rank < plan.grid.ranks(); ++rank) {
        const RankGroup group = rank_layout(plan, rank).groups.front();
        ASSERT_EQ(group.size, nodes * per_node / neighbours);
        ASSERT_EQ(group.member, rank / neighbours);
        ASSERT_EQ(group.neighbour, rank % neighbours);
        ASSERT_EQ(group.neighbours[static_cast<size_t>(group.neighbour)], rank);
        ASSERT_EQ(group.next, (rank + neighbours) % plan.grid.ranks());
        Positions all;
        for (size_t document = 0; document < lengths.size(); ++document)
          add(all, document, Cut{lengths[document], group.size}.spans(group.member));
        std::vector<int> taken(all.size(), 0);
        for (int64_t neighbour = 0; neighbour < neighbours; ++neighbour) {
          Positions own;
          for (size_t document = 0; document < lengths.size(); ++document)
            add(own, document,
                Cut{lengths[document], plan.grid.ranks()}.spans(group.member * neighbours +
                                                                neighbour));
          ASSERT_EQ(std::ssize(own), group.rows_of_neighbour(neighbour));
          size_t next = 0;
          for (const SharedRows& run : shared_rows(group, neighbour)) {
            ASSERT_EQ(run.own, static_cast<int64_t>(next));
            for (int64_t row = 0; row < run.count; ++row, ++next) {
              const auto at = static_cast<size_t>(run.shared + row);
              ASSERT_EQ(own[next], all[at]);
              ++taken[at];
            }
          }
          ASSERT_EQ(next, own.size());
        }
        ASSERT_TRUE(std::ranges::all_of(taken, [](int times) { return times == 1; }));
        ASSERT_EQ(ring_layout(group).attention_rows, std::ssize(all));
      }
    }
}

/// Z1, Z2: ranks hold the tokens that they hold without exchanged heads, and those that have one
/// part of the heads compute every pair once.
TEST(ExchangedHeads, EveryPairIsComputedOnceForEachPartOfTheHeads) {
  int64_t exchanging = 0;
  for (uint64_t trial = 0; trial < 200; ++trial) {
    const RandomStream stream(6, "batches", trial);
    std::vector<int64_t> lengths(1 + stream.below(0, 30));
    for (size_t i = 0; i < lengths.size(); ++i)
      lengths[i] = 1 + static_cast<int64_t>(stream.below(i + 1, i % 4 == 0 ? 2000 : 90));
    const RankGrid grid{2 + static_cast<int64_t>(trial % 2), 4};
    Plan plan = trial % 3 == 0 ? baseline_plan(lengths, {grid, 1 << 20, 1, 1}, Baseline::kHybrid)
                               : partition(lengths, {grid, 1 << 20, 200, 900});
    plan.fills = trial % 2 == 1;
    const Layout before = attention_layout(plan);
    const std::vector<Load> loads_before = loads(plan);
    plan.head_ranks = trial % 5 == 0 ? 4 : 2;
    ASSERT_EQ(attention_layout(plan), before);
    std::vector<int64_t> pairs(static_cast<size_t>(plan.head_ranks), 0);
    int64_t all = 0, loaded = 0;
    for (const int64_t length : lengths) all += causal_pairs(length);
    const std::vector<Load> after = loads(plan);
    for (int64_t rank = 0; rank < grid.ranks(); ++rank) {
      const RankLayout layout = rank_layout(plan, rank);
      const Load& load = after[static_cast<size_t>(rank)];
      loaded += load.pairs;
      ASSERT_EQ(load.tokens, loads_before[static_cast<size_t>(rank)].tokens);
      ASSERT_EQ(layout.held, before[static_cast<size_t>(rank)]);
      ASSERT_EQ(
          layout.groups[static_cast<size_t>(layout.first_of_rows(layout.order).group)].head_ranks(),
          1);
      int64_t rows = 0;
      for (const RankGroup& group : layout.groups) {
        ASSERT_EQ(group.first_row, rows);
        rows += group.rows;
        exchanging += group.head_ranks() > 1;
        for (int64_t round = 0; round < group.size; ++round)
          for (int64_t part = 0; part < plan.head_ranks; ++part)
            if (group.head_ranks() == 1 || group.neighbour == part)
              pairs[static_cast<size_t>(part)] += group.pairs(round);
      }
      ASSERT_EQ(rows, layout.attention_rows);
    }
    ASSERT_EQ(pairs, std::vector<int64_t>(pairs.size(), all)) << "trial " << trial;
    ASSERT_EQ(loaded, all);
  }
  EXPECT_GT(exchanging, 200);
}

TEST(ExchangedHeads, RingsBetweenNodesExchangeThemWhereRunsStayInside) {
  Plan plan{
      {2, 4}, {100}, {{.zone = Zone::kInter, .ranks = {0, 1, 2, 3, 4, 5, 6, 7}, .documents = {0}}}};
  Group& group = plan.groups.front();
  const uint64_t hash = plan_hash(plan);
  EXPECT_EQ(head_ranks_of(plan, group), 1);
  plan.head_ranks = 4;
  EXPECT_NE(plan_hash(plan), hash);
  EXPECT_EQ(head_ranks_of(plan, group), 4);
  plan.proxies = plan.rotations = 2;
  EXPECT_FALSE(is_routed(plan, group));
  EXPECT_FALSE(is_rotated(plan, group));
  plan.head_ranks = 2;
  group.ranks = {2, 3, 4, 5};
  EXPECT_EQ(head_ranks_of(plan, group), 2);
  group.ranks = {3, 4, 5, 6};  // runs of ranks of two nodes
  EXPECT_EQ(head_ranks_of(plan, group), 1);
  group.ranks = {3, 4};
  EXPECT_EQ(head_ranks_of(plan, group), 1);
  group.ranks = {0, 1, 2, 3};
  group.zone = Zone::kIntra;
  EXPECT_EQ(head_ranks_of(plan, group), 1);
}

/// Every two meet once, both in the same turn, and nobody meets two in one turn.
TEST(ExchangedHeads, NeighboursMeetInTurns) {
  for (int64_t ranks = 1; ranks <= 9; ++ranks) {
    std::map<std::pair<int64_t, int64_t>, std::set<int64_t>> turns;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::set<int64_t> met;
      int64_t last = -1;
      for (const int64_t other : turns_of(rank, ranks)) {
        EXPECT_TRUE(met.insert(other).second);
        EXPECT_NE(other, rank);
        const int64_t turn = (rank + other) % ranks;
        EXPECT_GT(turn, last);
        last = turn;
        turns[std::minmax(rank, other)].insert(turn);
      }
      EXPECT_EQ(std::ssize(met), ranks - 1);
    }
    for (const auto& [pair, of_pair] : turns) EXPECT_EQ(of_pair.size(), 1U);
  }
}

/// Z5: all-to-alls inside nodes, and rings of runs, as the even engine moves them; each link of a
/// node carries as much.
TEST(ExchangedHeads, BytesAreThoseOfTheEvenEngine) {
  const Layer layer{{8, 4, 4}, {2, 4}, 100, 40, 48};
  for (const int64_t length : {4000, 4001, 77})
    for (const int64_t neighbours : {2, 4}) {
      SCOPED_TRACE(testing::Message() << length << " tokens, " << neighbours << " neighbours");
      const Plan plan = even({length}, {2, 4}, neighbours);
      std::vector<int64_t> tokens;
      for (int64_t rank = 0; rank < 8; ++rank) tokens.push_back(Cut{length, 8}.tokens(rank));
      const HeadsRingTraffic want =
          heads_ring_traffic(tokens, neighbours, layer.heads, layer.bytes);
      const LevelTraffic got = plan_traffic(plan, layer);
      EXPECT_EQ(got.inside + got.between, want.exchanged + want.ring);
      if (neighbours == 4) {
        EXPECT_EQ(got.inside, want.exchanged);
      }
      const std::vector<int64_t> links = bytes_over_links(plan, layer);
      EXPECT_EQ(std::accumulate(links.begin(), links.end(), int64_t{0}),
                got.between.forward + got.between.backward);
      EXPECT_EQ(std::ranges::count(links, 0), 8 - 2 * neighbours);
      EXPECT_EQ(links[2], links[3]);
      const int64_t plain = plan_traffic(even({length}, {2, 4}, 1), layer).between.forward;
      EXPECT_LT(got.between.forward, plain);
    }
}

TEST(ExchangedHeads, ReportsSayWhoseTheyAre) {
  const Layer layer{{8, 4, 4}, {2, 4}, 100, 40, 48};
  Plan plan = even({400, 300}, {2, 4}, 4);
  const Json heads = plan_json(plan, layer, {}, 1).at("heads");
  EXPECT_EQ(heads.at("ranks").as_integer(), 4);
  EXPECT_EQ(heads.at("documents").as_integer(), 2);
  EXPECT_NE(
      plan_text(plan_json(plan, layer, {}, 1)).find("heads of 2 documents exchanged among 4 ranks"),
      std::string::npos);
  plan.head_ranks = 1;
  EXPECT_EQ(plan_json(plan, layer, {}, 1).at("heads").at("documents").as_integer(), 0);
  EXPECT_EQ(plan_text(plan_json(plan, layer, {}, 1)).find("exchanged"), std::string::npos);
}

/// A ring of two runs of two: one hop between nodes for two ranks' tokens, over a link each, while
/// a rank attends to as many keys; before and behind it the exchange.
TEST(ExchangedHeads, PricesAreClosedForms) {
  const Machine machine{1e9, 0, 1e9, {1e-9, 1e-7, 0, 0, 2}, 2};
  const Layer layer{{4, 2, 4}, {4, 4}, 10};
  const Plan plan = even({4000}, {2, 2}, 2);
  const double round = 2 * 8 * 2000.0 * 2000 / 1e9;  // half of the heads
  const double forward = 2000 * 2 * 4 * 4 * 1e-7;    // one of two key heads
  const double exchange = 1000 * 2 * (16 + 8) * 4 * 1e-9 / 2;
  EXPECT_NEAR(price(plan, machine, layer, {}).attention_slowest,
              round + std::max(round, forward) + 2.5 * round + 2 * std::max(1.25 * round, forward) +
                  2 * exchange,
              1e-9);
  Machine one_link = machine;
  one_link.links.of_node = 1;
  one_link.links_of_node = 1;
  one_link.attention_flops = 1e15;
  EXPECT_NEAR(price(plan, one_link, layer, {}).attention_slowest,
              2 * forward + 4 * forward + 2 * exchange, 1e-6);
  Machine copies = machine;
  copies.memory_bytes_per_second = 1e8;
  EXPECT_NEAR(price(plan, copies, layer, {}).attention_slowest -
                  price(plan, machine, layer, {}).attention_slowest,
              2 * 4 * 1000 * 2 * (16 + 8) * 4 / 1e8, 1e-9);
}

}  // namespace
}  // namespace strait::sequence
