// What ranks hold of a plan, against the plan's own figures.
#include "strait/sequence/rank_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/sequence/partition.h"
#include "strait/sequence/worked_pairs.h"

namespace strait::sequence {
namespace {

struct Drawn {
  std::vector<int64_t> lengths;
  PartitionOptions options;
};

Drawn draw(const RandomStream& stream) {
  uint64_t at = 0;
  const auto next = [&](int64_t least, int64_t most) {
    return least +
           static_cast<int64_t>(stream.below(at++, static_cast<uint64_t>(most - least + 1)));
  };
  Drawn drawn;
  drawn.options.grid = {next(1, 3), next(1, 4)};
  for (int64_t count = next(1, 40); count > 0; --count)
    drawn.lengths.push_back(next(0, 3) == 0 ? next(1, 2000) : next(1, 90));
  drawn.options.capacity_tokens = 1 << 20;
  drawn.options.split_inside = next(1, 400);
  drawn.options.split_between = next(1, 1500);
  return drawn;
}

void expect_every_round_once(const RankLayout& layout) {
  std::map<int64_t, int64_t> rounds;  // by group: in order
  for (const EngineStep& step : layout.order) ASSERT_EQ(step.round, rounds[step.group]++);
  ASSERT_EQ(std::ssize(rounds), std::ssize(layout.groups));
  for (const auto& [group, count] : rounds)
    ASSERT_EQ(count, layout.groups[static_cast<size_t>(group)].size);
}

TEST(RankLayouts, HoldEveryTokenOnceAndComputeEveryPairOnce) {
  const RandomStream stream(4, "layouts");
  for (uint64_t trial = 0; trial < 500; ++trial) {
    const Drawn drawn = draw(RandomStream(stream.key(), "trial", trial));
    Plan plan = trial % 3 == 0 ? baseline_plan(drawn.lengths, drawn.options,
                                               trial % 2 == 0 ? Baseline::kEven : Baseline::kHybrid)
                               : partition(drawn.lengths, drawn.options);
    plan.fills = trial % 2 == 1;
    const Layout all = attention_layout(plan);
    const std::vector<Load> loads_of = loads(plan);
    std::map<std::pair<int32_t, int64_t>, int> seen;
    int64_t pairs = 0, expected = 0;
    for (int64_t rank = 0; rank < plan.grid.ranks(); ++rank) {
      const RankLayout layout = rank_layout(plan, rank);
      ASSERT_EQ(layout.held, all[static_cast<size_t>(rank)]);
      ASSERT_EQ(std::ssize(layout.positions), loads_of[static_cast<size_t>(rank)].tokens);
      size_t row = 0;
      for (const Held& held : layout.held)
        for (int64_t position = held.span.begin; position < held.span.end; ++position) {
          ASSERT_EQ(layout.positions[row++], position);
          ++seen[{held.document, position}];
        }
      int64_t rows = 0;
      expect_every_round_once(layout);
      for (const RankGroup& group : layout.groups) {
        ASSERT_EQ(group.first_row, rows);
        ASSERT_EQ(group.rows, group.rows_of(group.member));
        rows += group.rows;
        for (int64_t round = 0; round < group.size; ++round) pairs += group.pairs(round);
      }
      ASSERT_EQ(rows, std::ssize(layout.positions));
    }
    for (const auto& [token, count] : seen) ASSERT_EQ(count, 1);
    for (const int64_t length : drawn.lengths) expected += causal_pairs(length);
    ASSERT_EQ(pairs, expected) << "trial " << trial;
  }
}

/// Z1: linear modules have every token once, floor or ceil of the mean on each rank; the rows of
/// attention and theirs begin alike, and what one rank gives another one takes.
TEST(RankLayouts, RemappedRowsAreEvenAndBeginAsThoseOfAttention) {
  const RandomStream stream(9, "remapped layouts");
  int64_t moved = 0;
  for (uint64_t trial = 0; trial < 500; ++trial) {
    const Drawn drawn = draw(RandomStream(stream.key(), "trial", trial));
    Plan plan = partition(drawn.lengths, drawn.options);
    plan.fills = trial % 2 == 1;
    std::map<std::pair<int32_t, int64_t>, int> seen;
    std::vector<RankLayout> attended, linear;
    int64_t all = 0;
    for (const int64_t length : drawn.lengths) all += length;
    const int64_t ranks = plan.grid.ranks();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      plan.remapping = Remapping::kNone;
      attended.push_back(rank_layout(plan, rank));
      plan.remapping = trial % 2 == 0 ? Remapping::kQkv : Remapping::kResidual;
      linear.push_back(rank_layout(plan, rank));
      ASSERT_EQ(linear.back().remapping, plan.remapping);
      const RankLayout &before = attended.back(), &layout = linear.back();
      ASSERT_EQ(layout.attention_rows, before.attention_rows);
      ASSERT_EQ(before.linear_rows, before.attention_rows);
      ASSERT_TRUE(before.moved.empty());
      ASSERT_GE(layout.linear_rows, all / ranks);
      ASSERT_LE(layout.linear_rows, (all + ranks - 1) / ranks);
      ASSERT_EQ(std::ssize(layout.positions), std::max(layout.attention_rows, layout.linear_rows));
      ASSERT_TRUE(std::ranges::equal(before.positions,
                                     std::span(layout.positions).first(before.positions.size())));
      int64_t row = 0;
      for (const Held& held : layout.held)
        for (int64_t position = held.span.begin; position < held.span.end; ++position) {
          ASSERT_EQ(layout.positions[static_cast<size_t>(row++)], position);
          ++seen[{held.document, position}];
        }
      ASSERT_EQ(row, layout.linear_rows);
    }
    ASSERT_EQ(std::ssize(seen), all);
    for (const auto& [token, count] : seen) ASSERT_EQ(count, 1);
    const auto token_at = [](const RankLayout& layout, int64_t row) {
      for (const Held& held : layout.held) {
        if (row < held.span.size()) return std::pair(held.document, held.span.begin + row);
        row -= held.span.size();
      }
      return std::pair(int32_t{-1}, int64_t{-1});
    };
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (const MovedRows& rows : linear[static_cast<size_t>(rank)].moved) {
        if (!rows.given) continue;
        const auto& taken = linear[static_cast<size_t>(rows.other)].moved;
        const auto found = std::ranges::find_if(taken, [&](const MovedRows& other) {
          return other.other == rank && other.end - other.begin == rows.end - rows.begin &&
                 token_at(linear[static_cast<size_t>(rows.other)], other.begin) ==
                     token_at(attended[static_cast<size_t>(rank)], rows.begin);
        });
        ASSERT_NE(found, taken.end()) << "trial " << trial;
        ASSERT_FALSE(found->given);
        moved += rows.end - rows.begin;
      }
  }
  EXPECT_GT(moved, 1000);
}

/// A document of five tokens on one of two ranks: rows of no document stand behind it, and on the
/// rank without tokens there are no others.
TEST(RankLayouts, RowsAreFilledUpToWhatRanksOfXSplitEvenly) {
  Plan plan{{1, 2}, {5}, {{.ranks = {0}, .documents = {0}}}};
  const uint64_t whole = plan_hash(plan);
  for (const auto& [split, of_five, of_none] :
       {std::tuple(1, 5, 1), std::tuple(2, 6, 2), std::tuple(4, 8, 4)}) {
    plan.row_split = split;
    plan.remapping = Remapping::kNone;
    for (const auto& [rank, rows] : {std::pair(0, of_five), std::pair(1, of_none)}) {
      const RankLayout layout = rank_layout(plan, rank);
      EXPECT_EQ(layout.linear_rows, rank == 0 ? 5 : 0);
      EXPECT_EQ(layout.rows, rows);
      EXPECT_EQ(layout.attended_rows(), rows);
    }
    EXPECT_EQ(plan_hash(plan) == whole, split == 1);
    plan.remapping = Remapping::kQkv;  // three and two tokens, of which attention has five and none
    for (const int64_t rank : {0, 1}) {
      const RankLayout layout = rank_layout(plan, rank);
      EXPECT_EQ(layout.rows, (layout.linear_rows + split - 1) / split * split);
      EXPECT_EQ(layout.attended_rows(), std::max<int64_t>(rank == 0 ? 5 : 0, layout.rows));
    }
  }
  plan.row_split = 1;
  plan.remapping = Remapping::kResidual;
  EXPECT_EQ(rank_layout(plan, 0).attended_rows(), 5);
  EXPECT_EQ(rank_layout(plan, 1).attended_rows(), 1);
}

/// Five documents of one rank beside a ring of three: two rounds wait, and the end.
TEST(RankLayouts, LocalDocumentsFillTheWaits) {
  Plan plan{{1, 3},
            {300, 10, 10, 10, 10, 10},
            {{.zone = Zone::kIntra, .ranks = {0, 1, 2}, .documents = {0}},
             {.ranks = {1}, .documents = {1, 2, 3, 4, 5}}}};
  using Order = std::vector<EngineStep>;
  EXPECT_EQ(rank_layout(plan, 1).order, (Order{{0, 0}, {0, 1}, {0, 2}, {1, 0}}));
  plan.fills = true;
  const RankLayout filled = rank_layout(plan, 1);
  EXPECT_EQ(filled.order, (Order{{0, 0}, {1, 0}, {0, 1}, {2, 0}, {0, 2}, {3, 0}}));
  EXPECT_EQ(filled.groups[1].lengths.size(), 2U);
  EXPECT_EQ(filled.groups[2].lengths.size(), 1U);
  EXPECT_EQ(rank_layout(plan, 0).order, (Order{{0, 0}, {0, 1}, {0, 2}}));
  using enum OwnPairs;
  EXPECT_EQ(filled.backward_order,
            (Order{{0, 0, kAcross}, {1, 0}, {0, 1}, {2, 0}, {0, 2}, {3, 0}, {0, 0, kWithin}}));
  plan.groups.pop_back();
  plan.groups.front() = {.ranks = {1}, .documents = {0, 1, 2, 3, 4, 5}};
  EXPECT_EQ(rank_layout(plan, 1).order, (Order{{0, 0}}));
}

/// A whole document is worked on in tiles, of which a diagonal one counts whole.
TEST(RankLayouts, TilesAreWorkedOnWhole) {
  const auto alone = [](int64_t length) {
    return worked_pairs(
        rank_layout({{1, 1}, {length}, {{.ranks = {0}, .documents = {0}}}}, 0).groups.front(), {});
  };
  EXPECT_EQ(alone(1), 1);
  EXPECT_EQ(alone(64), 64 * 64);
  EXPECT_EQ(alone(65), 64 * 64 + 65);
  for (const int64_t length : {128, 640, 4096})
    EXPECT_EQ(alone(length), length * (length + 64) / 2);
  // Of a ring a later chunk of queries sees a whole earlier one.
  const Plan plan{{1, 2}, {512}, {{.zone = Zone::kIntra, .ranks = {0, 1}, .documents = {0}}}};
  const RankGroup second = rank_layout(plan, 1).groups.front();
  EXPECT_EQ(worked_pairs(second, {0, 1}), second.pairs(1));
  EXPECT_GT(worked_pairs(second, {0, 0}), second.pairs(0));
}

/// Of each part a rank has the keys of every member once; its neighbour has them one round later.
TEST(RankLayouts, KeysOfEveryPartGoAroundInItsOwnOrder) {
  Plan plan{{2, 3},
            {400, 77, 30},
            {{.zone = Zone::kInter, .ranks = {0, 1, 2, 3, 4, 5}, .documents = {0, 1}},
             {.ranks = {1}, .documents = {2}}}};
  plan.fills = true;
  const std::vector<RankLayout> plain = [&] {
    std::vector<RankLayout> all;
    for (int64_t rank = 0; rank < 6; ++rank) all.push_back(rank_layout(plan, rank));
    return all;
  }();
  plan.rotations = 3;
  std::vector<RankLayout> all;
  for (int64_t rank = 0; rank < 6; ++rank) all.push_back(rank_layout(plan, rank));
  for (size_t rank = 0; rank < 6; ++rank) {
    const RankLayout& layout = all[rank];
    expect_every_round_once(layout);
    EXPECT_EQ(layout.positions, plain[rank].positions);
    EXPECT_EQ(layout.groups.size(), plain[rank].groups.size() + 2);
    for (size_t part = 0; part < 3; ++part) {
      const RankGroup& group = layout.groups[part];
      ASSERT_EQ(group.part, static_cast<int64_t>(part));
      ASSERT_EQ(group.parts, 3);
      EXPECT_EQ(group.rows, plain[rank].groups.front().rows);
      EXPECT_EQ(group.ranks[static_cast<size_t>(group.position)], static_cast<int32_t>(rank));
      int64_t pairs = 0;
      std::set<int64_t> holders;
      for (int64_t round = 0; round < 6; ++round) {
        pairs += group.pairs(round);
        holders.insert(group.holder(round));
        const RankGroup& next = all[static_cast<size_t>(group.next)].groups[part];
        EXPECT_EQ(next.before, static_cast<int32_t>(rank));
        EXPECT_EQ(next.holder(round + 1), group.holder(round));
        if (part == 0) {
          EXPECT_EQ(group.pairs(round), plain[rank].groups.front().pairs(round));
        }
      }
      EXPECT_EQ(holders.size(), 6U);
      EXPECT_EQ(group.holder(0), group.member);
      EXPECT_EQ(pairs, loads(plan)[rank].pairs - (rank == 1 ? causal_pairs(30) : 0));
    }
  }
  // A round's parts stand together, and documents of the rank's own between rounds.
  const std::vector<EngineStep>& order = all[0].order;
  ASSERT_EQ(order.size(), 18U);
  for (int64_t at = 0; at < 18; ++at)
    EXPECT_EQ(order[static_cast<size_t>(at)], (EngineStep{at % 3, at / 3}));
}

TEST(RankLayouts, NeighboursFollowTheRing) {
  Plan plan{{1, 4}, {100}, {{.zone = Zone::kIntra, .ranks = {0, 2, 3}, .documents = {0}}}};
  const RankGroup first = rank_layout(plan, 0).groups.front();
  const RankGroup last = rank_layout(plan, 3).groups.front();
  EXPECT_EQ(first.before, 3);
  EXPECT_EQ(first.next, 2);
  EXPECT_EQ(last.next, 0);
  EXPECT_EQ(first.holder(1), 2);
  const RankLayout without = rank_layout(plan, 1);
  ASSERT_EQ(without.groups.size(), 1U);
  EXPECT_EQ(without.groups.front().rows, 0);
  plan.groups.front().engine = Engine::kGathered;
  EXPECT_THROW(rank_layout(plan, 2), InternalError);
}

}  // namespace
}  // namespace strait::sequence
