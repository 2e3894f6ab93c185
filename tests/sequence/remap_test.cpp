// Even counts by the fewest and cheapest moves, against all ways to move tokens.
#include "strait/sequence/remap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace strait::sequence {
namespace {

using Counts = std::vector<int64_t>;

/// A token costs 1 inside a node of two ranks, 10 between nodes.
int64_t cost_of(int64_t from, int64_t to) { return from / 2 == to / 2 ? 1 : 10; }

/// The least cost of moving every surplus to a deficit, token by token.
int64_t least_cost(const Counts& surplus, std::map<Counts, int64_t>& known) {
  const auto giver = std::find_if(surplus.begin(), surplus.end(), [](int64_t s) { return s > 0; });
  if (giver == surplus.end()) return 0;
  if (const auto found = known.find(surplus); found != known.end()) return found->second;
  int64_t best = -1;
  const int64_t from = giver - surplus.begin();
  for (size_t to = 0; to < surplus.size(); ++to) {
    if (surplus[to] >= 0) continue;
    Counts next = surplus;
    --next[static_cast<size_t>(from)];
    ++next[to];
    const int64_t cost = cost_of(from, static_cast<int64_t>(to)) + least_cost(next, known);
    if (best < 0 || cost < best) best = cost;
  }
  return known[surplus] = best;
}

void check(const Counts& tokens, std::map<Counts, int64_t>& known) {
  const std::vector<int64_t> levels = {2, static_cast<int64_t>(tokens.size()) / 2};
  const Remap remap = make_remap(tokens, levels);
  const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  const int64_t ranks = static_cast<int64_t>(tokens.size());
  Counts surplus = tokens, after = tokens;
  int64_t fewest = 0, cost = 0;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    ASSERT_GE(remap.targets[rank], all / ranks);
    ASSERT_LE(remap.targets[rank], (all + ranks - 1) / ranks);
    surplus[rank] -= remap.targets[rank];
    fewest += std::max<int64_t>(0, surplus[rank]);
  }
  for (const Move& move : remap.moves) {
    after[static_cast<size_t>(move.from)] -= move.tokens;
    after[static_cast<size_t>(move.to)] += move.tokens;
    cost += move.tokens * cost_of(move.from, move.to);
  }
  ASSERT_EQ(after, remap.targets);
  ASSERT_EQ(remap.moved_tokens(), fewest);
  ASSERT_EQ(cost, least_cost(surplus, known));
}

void check_all(Counts& tokens, size_t rank, int64_t left, std::map<Counts, int64_t>& known) {
  if (rank == tokens.size()) return check(tokens, known);
  for (int64_t count = 0; count <= left; ++count) {
    tokens[rank] = count;
    check_all(tokens, rank + 1, left - count, known);
  }
  tokens[rank] = 0;
}

/// Z7: every way to have at most 12 tokens on 4 or 6 ranks.
TEST(RemapTest, MovesTheFewestTokensAtTheLeastCost) {
  for (const size_t ranks : {4, 6}) {
    std::map<Counts, int64_t> known;
    Counts tokens(ranks, 0);
    check_all(tokens, 0, 12, known);
  }
}

TEST(RemapTest, EvenCountsStay) {
  EXPECT_TRUE(make_remap(Counts{5, 5, 5}, Counts{3}).moves.empty());
  EXPECT_TRUE(make_remap(Counts{5, 6, 5}, Counts{3}).moves.empty());
}

/// 30 and 10 tokens on a node, 20 and 20 on the other one: 10 move inside the first.
TEST(RemapTest, BytesOfAPlanAreThoseOfItsMoves) {
  Plan plan{{2, 2},
            {30, 10, 20, 20},
            {{.ranks = {0}, .documents = {0}},
             {.ranks = {1}, .documents = {1}},
             {.ranks = {2}, .documents = {2}},
             {.ranks = {3}, .documents = {3}}}};
  const Layer layer{.heads = {8, 2, 4}, .bytes = {2, 4}, .stream_columns = 24};
  EXPECT_TRUE(remap_of(plan).moves.empty());
  EXPECT_EQ(remap_of(plan).targets, (Counts{30, 10, 20, 20}));
  EXPECT_EQ(remap_traffic(plan, layer).inside, Traffic{});
  plan.remapping = Remapping::kQkv;
  EXPECT_EQ(remap_of(plan).targets, (Counts{20, 20, 20, 20}));
  const int64_t bytes = 10 * (2 * 32 + 2 * 8) * 2;
  EXPECT_EQ(remap_traffic(plan, layer).inside, (Traffic{bytes, bytes}));
  EXPECT_EQ(remap_traffic(plan, layer).between, Traffic{});
  plan.lengths = {40, 40, 10, 10};  // of each rank of the first node 15 leave it
  const int64_t crossing = 2 * 15 * (2 * 32 + 2 * 8) * 2;
  EXPECT_EQ(remap_traffic(plan, layer).inside, Traffic{});
  EXPECT_EQ(remap_traffic(plan, layer).between, (Traffic{crossing, crossing}));
  plan.remapping = Remapping::kResidual;  // the same tokens, there and back
  const int64_t stream = 2 * 15 * 2 * 24 * 2;
  EXPECT_EQ(remap_traffic(plan, layer).inside, Traffic{});
  EXPECT_EQ(remap_traffic(plan, layer).between, (Traffic{stream, stream}));
}

}  // namespace
}  // namespace strait::sequence
