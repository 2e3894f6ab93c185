// Layout and work of one document on a ring, against counting token by token.
#include "strait/sequence/chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "strait/base/errors.h"
#include "strait/sequence/traffic.h"

namespace strait::sequence {
namespace {

std::vector<int64_t> tokens_of(const Cut& cut) {
  std::vector<int64_t> tokens;
  for (int64_t member = 0; member < cut.ring; ++member) tokens.push_back(cut.tokens(member));
  return tokens;
}

TEST(ChunksTest, EveryPositionStandsOnceAndMembersAreBalanced) {
  for (const int64_t ring : {1, 2, 3, 4, 8, 16})
    for (int64_t length = 1; length < 4000; length += length < 70 ? 1 : 61) {
      const Cut cut{length, ring};
      std::vector<Span> spans;
      std::vector<int64_t> pairs;
      for (int64_t member = 0; member < ring; ++member) {
        for (const Span& span : cut.spans(member)) spans.push_back(span);
        pairs.push_back(cut.pairs(member));
      }
      std::sort(spans.begin(), spans.end(),
                [](const Span& a, const Span& b) { return a.begin < b.begin; });
      int64_t at = 0;
      for (const Span& span : spans) {
        ASSERT_EQ(span.begin, at);
        ASSERT_GT(span.size(), 0);
        at = span.end;
      }
      ASSERT_EQ(at, length);
      const std::vector<int64_t> tokens = tokens_of(cut);
      EXPECT_LE(std::ranges::max(tokens) - std::ranges::min(tokens), 2) << length << " on " << ring;
      EXPECT_LE(std::ranges::max(pairs) - std::ranges::min(pairs), length)
          << length << " on " << ring;
      EXPECT_EQ(std::accumulate(pairs.begin(), pairs.end(), int64_t{0}), causal_pairs(length));
      if (length % (2 * ring) == 0) {
        const int64_t c = length / (2 * ring);
        EXPECT_EQ(pairs[0], c * c * (2 * ring - 1) + c * (c + 1));
      }
    }
}

/// Z2, by a mock kernel that ticks off pairs.
TEST(ChunksTest, EveryCausalPairIsComputedOnce) {
  for (const Order order : {Order::kZigZag, Order::kContiguous})
    for (const int64_t ring : {1, 2, 3, 4, 8})
      for (const int64_t length : {int64_t{1}, 2 * ring - 1, 2 * ring, int64_t{31}, int64_t{48}}) {
        const Cut cut{length, ring, order};
        std::map<std::pair<int64_t, int64_t>, int> computed;
        for (int64_t member = 0; member < ring; ++member) {
          int64_t pairs = 0;
          for (int64_t round = 0; round < ring; ++round)
            for (const Block& block : round_blocks(cut, member, round)) {
              int64_t counted = 0;
              for (int64_t q = block.queries.begin; q < block.queries.end; ++q)
                for (int64_t k = block.keys.begin; k < std::min(block.keys.end, q + 1);
                     ++k, ++counted)
                  ++computed[{q, k}];
              EXPECT_EQ(block.pairs(), counted);
              pairs += counted;
            }
          EXPECT_EQ(pairs, cut.pairs(member));
        }
        EXPECT_EQ(static_cast<int64_t>(computed.size()), causal_pairs(length));
        EXPECT_TRUE(
            std::ranges::all_of(computed, [](const auto& entry) { return entry.second == 1; }));
      }
}

/// Both halves of round 0 together are it, and of about the same work.
TEST(ChunksTest, OwnPairsComeInTwoHalves) {
  for (const int64_t ring : {1, 2, 3, 8})
    for (const int64_t length : {int64_t{1}, 2 * ring - 1, 2 * ring, int64_t{31}, int64_t{4096}})
      for (int64_t member = 0; member < ring; ++member) {
        const Cut cut{length, ring};
        std::map<std::pair<int64_t, int64_t>, int> left;
        const auto count = [&](const std::vector<Block>& blocks, int by) {
          int64_t pairs = 0;
          for (const Block& block : blocks) {
            EXPECT_GT(block.pairs(), 0);
            pairs += block.pairs();
            for (int64_t q = block.queries.begin; q < block.queries.end; ++q)
              for (int64_t k = block.keys.begin; k < std::min(block.keys.end, q + 1); ++k)
                left[{q, k}] += by;
          }
          return pairs;
        };
        const int64_t all = count(round_blocks(cut, member, 0), 1);
        const int64_t across = count(own_blocks(cut, member, OwnPairs::kAcross), -1);
        const int64_t within = count(own_blocks(cut, member, OwnPairs::kWithin), -1);
        EXPECT_EQ(across + within, all);
        EXPECT_TRUE(std::ranges::all_of(left, [](const auto& entry) { return entry.second == 0; }));
        if (length >= 4096 && ring > 1) {
          EXPECT_NEAR(static_cast<double>(across), static_cast<double>(within),
                      0.01 * static_cast<double>(all));
        }
      }
}

/// After round 0 each round takes 2 c^2 pairs, whoever owns the keys; late keys of earlier members
/// are never looked at.
TEST(ChunksTest, PartsOfKeysAreTheSameRowsOfEveryChunk) {
  for (const auto& [chunk, parts] : std::map<int64_t, int64_t>{{1, 1},
                                                               {128, 1},
                                                               {255, 1},
                                                               {256, 2},
                                                               {258, 2},
                                                               {384, 2},
                                                               {512, 4},
                                                               {1028, 4},
                                                               {1024, 8},
                                                               {1 << 20, 8}})
    EXPECT_EQ(ring_parts(chunk), parts) << chunk;
  constexpr int64_t kChunk = 6, kChunks = 4;  // of two sequences
  std::vector<int64_t> seen;
  for (int64_t part = 0; part < 3; ++part)
    for (int64_t row = 0; row < kChunks * kChunk / 3; ++row) {
      seen.push_back(KeyPart{part, 3}.own_row(row, kChunk));
      EXPECT_EQ(seen.back() % kChunk / 2, part);
      if (row > 0) {
        EXPECT_GT(seen.back(), seen[seen.size() - 2]);
      }
    }
  std::ranges::sort(seen);
  for (int64_t row = 0; row < kChunks * kChunk; ++row)
    EXPECT_EQ(seen[static_cast<size_t>(row)], row);
}

TEST(ChunksTest, LaterRoundsOfAZigZagRingCostTwoSquaresOfAChunk) {
  const Cut cut{8 * 2 * 10, 8};
  for (int64_t member = 0; member < 8; ++member)
    for (int64_t round = 1; round < 8; ++round) {
      int64_t pairs = 0;
      for (const Block& block : round_blocks(cut, member, round)) pairs += block.pairs();
      EXPECT_EQ(pairs, 2 * 10 * 10);
    }
}

/// Z11: (g/2) / (g - 1/2) = 53.3 % for long documents.
TEST(ChunksTest, AContiguousRingOfEightRunsAt53PercentAndAZigZagOneAt100) {
  const int64_t length = 1 << 20;
  const double ideal = static_cast<double>(causal_pairs(length)) / 8;
  EXPECT_NEAR(ideal / ring_seconds({length, 8, Order::kContiguous}, 1, 0), 4 / 7.5, 1e-5);
  EXPECT_NEAR(ideal / ring_seconds({length, 8}, 1, 0), 1, 1e-5);
}

/// With n = s / g a round computes n^2 / 2 pairs and moves n tokens.
TEST(ChunksTest, TransfersHideExactlyAboveTheThreshold) {
  const Cut cut{8 * 1024, 8};
  const double compute = static_cast<double>(cut.pairs(0));
  EXPECT_NEAR(ring_seconds(cut, 1, 0.9 * 1024 / 2), compute, 1e-3 * compute);
  EXPECT_NEAR(ring_seconds(cut, 1, 2 * 1024 / 2.0), 7 * 1024 * 1024.0 + 1024 * 1024 / 2.0,
              2e-3 * compute);
}

TEST(TrafficTest, SumsOverMembersAreTheClosedForms) {
  const Heads heads{8, 2, 4};
  const ElementBytes bytes{2, 4};
  for (const int64_t ring : {1, 2, 3, 4, 8})
    for (const int64_t length : {int64_t{1}, 2 * ring - 1, int64_t{1021}}) {
      const std::vector<int64_t> tokens = tokens_of({length, ring});
      EXPECT_EQ(ring_traffic(tokens, heads, bytes),
                (Traffic{(ring - 1) * length * 2 * 8 * 2, (ring - 1) * length * 2 * 8 * 6}));
      EXPECT_EQ(gathered_traffic(tokens, heads, bytes),
                (Traffic{(ring - 1) * length * 2 * 8 * 2, (ring - 1) * length * 2 * 8 * 4}));
      EXPECT_EQ(gathered_traffic(tokens, heads, bytes, false).backward,
                (ring - 1) * length * 2 * 8 * 6);
    }
}

/// Token by token: who sends which keys, hop by hop.
TEST(TrafficTest, AMemberSendsWhatItsNeighbourHasNotSeen) {
  const std::vector<int64_t> tokens = {5, 0, 7, 3};
  const Heads heads{1, 1, 1};
  for (size_t member = 0; member < 4; ++member) {
    int64_t keys = 0, sums = 0;
    for (size_t hop = 0; hop < 3; ++hop) keys += tokens[(member + 4 - hop) % 4];
    for (size_t owner = 0; owner < 4; ++owner)
      if (owner != member) sums += tokens[owner];
    EXPECT_EQ(ring_sends(tokens, static_cast<int64_t>(member), heads, {1, 1}),
              (Traffic{2 * keys, 2 * keys + 2 * sums}));
  }
}

TEST(TrafficTest, HeadsMoveSharesOfTheirColumns) {
  const std::vector<int64_t> tokens = {5, 6, 5, 6};
  const ElementBytes bytes{2, 4};
  EXPECT_EQ(heads_traffic(tokens, {8, 4, 3}, bytes),
            (Traffic{3 * 22 * (2 * 24 + 2 * 12) / 4 * 2, 3 * 22 * (2 * 24 + 2 * 12) / 4 * 2}));
  EXPECT_EQ(heads_traffic(tokens, {8, 2, 3}, bytes),
            (Traffic{3 * 22 * 2 * 24 / 4 * 2 + 3 * 22 * 6 * 2,
                     3 * 22 * 2 * 24 / 4 * 2 + 3 * 22 * 6 * 4}));
  try {
    heads_traffic(std::vector<int64_t>(5, 1), {8, 4, 3}, bytes);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "8 query heads and 4 key heads cannot be spread over 5 ranks; nearest: 4 ranks");
  }
}

TEST(TrafficTest, HeadsInsideRingsMoveWhatBothDo) {
  const std::vector<int64_t> tokens = {5, 6, 7, 4, 2, 9};  // groups of 11, 11 and 11, or 18 and 15
  const Heads heads{12, 6, 3};
  const ElementBytes bytes{2, 4};
  const HeadsRingTraffic pairs = heads_ring_traffic(tokens, 2, heads, bytes);
  EXPECT_EQ(pairs.exchanged,
            (Traffic{33 * (2 * 36 + 2 * 18) / 2 * 2, 33 * (2 * 36 + 2 * 18) / 2 * 2}));
  EXPECT_EQ(pairs.deltas, (Traffic{0, 33 * 12 / 2 * 4}));
  EXPECT_EQ(pairs.ring, (Traffic{2 * 33 * 2 * 18 * 2, 2 * 33 * 2 * 18 * 6}));
  const HeadsRingTraffic three = heads_ring_traffic(tokens, 3, heads, bytes);
  EXPECT_EQ(three.ring, (Traffic{33 * 2 * 18 * 2, 33 * 2 * 18 * 6}));
  const HeadsRingTraffic ring = heads_ring_traffic(tokens, 1, heads, bytes);
  EXPECT_EQ(ring.exchanged, Traffic{});
  EXPECT_EQ(ring.ring, ring_traffic(tokens, heads, bytes));
  const HeadsRingTraffic all = heads_ring_traffic(tokens, 6, heads, bytes);
  EXPECT_EQ(all.exchanged, heads_traffic(tokens, heads, bytes));
  EXPECT_EQ(all.deltas, delta_traffic(tokens, heads, bytes));
  EXPECT_EQ(all.ring, Traffic{});
  try {
    heads_ring_traffic(tokens, 4, heads, bytes);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "6 key heads of 6 ranks cannot be exchanged in groups of 4 ranks; nearest: 3 ranks");
  }
}

/// Ring and heads move equally much at g = h/k + 1.
TEST(TrafficTest, RingAndHeadsBreakEven) {
  const std::vector<int64_t> two = {8, 8}, nine(9, 72);
  EXPECT_EQ(ring_traffic(two, {2, 2, 4}, {}).forward, heads_traffic(two, {2, 2, 4}, {}).forward);
  const Heads shared{72, 9, 2};
  EXPECT_EQ(ring_traffic(nine, shared, {}).forward, heads_traffic(nine, shared, {}).forward);
}

TEST(TrafficTest, LevelsAddUpAndOnlyBordersOfNodesCross) {
  const Heads heads{4, 2, 2};
  const std::vector<int64_t> tokens = {3, 4, 4, 3};
  const std::vector<int32_t> ranks = {0, 1, 2, 3};
  const LevelTraffic ring = ring_levels(tokens, ranks, 2, heads, {});
  EXPECT_EQ(ring.inside + ring.between, ring_traffic(tokens, heads, {}));
  EXPECT_EQ(ring.between, ring_sends(tokens, 1, heads, {}) + ring_sends(tokens, 3, heads, {}));
  const LevelTraffic gathered = gathered_levels(tokens, ranks, 2, heads, {});
  EXPECT_EQ(gathered.inside + gathered.between, gathered_traffic(tokens, heads, {}));
  EXPECT_EQ(gathered.between.forward, 2 * 14 * 2 * 4 * 2);
  EXPECT_EQ(ring_levels(tokens, ranks, 4, heads, {}).between, Traffic{});
}

}  // namespace
}  // namespace strait::sequence
