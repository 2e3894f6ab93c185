// The quantized reduction in hops (qgZ; specs/sharding.md 3.b, invariants 4, 5 and 9) on 1 to 4
// nodes of 1 to 8 ranks: exact where the codec is, on the rank that owns the result; near and
// unbiased elsewhere.
#include <gtest/gtest.h>

#include <cmath>

#include "strait/base/random.h"
#include "tests/train/reduction.h"

namespace strait {
namespace {

using test::owned_range;
using test::Reduced;
using test::ReductionCase;

/// Whole numbers up to 7, with a 7 in every block of 16, so that int4/16 loses nothing: not in what
/// a rank gives, which is a multiple of this one, and not in sums of those.
float pattern(int64_t element, int64_t elements) {
  if (element >= elements / 16 * 16) return static_cast<float>(element % 2 * 7);
  if (element % 16 == 3) return 7.0f;
  return static_cast<float>((element * element + element / 16) % 15 - 7);
}
float whole_number(int64_t rank, int64_t element, int64_t elements) {
  return static_cast<float>(rank + 1) * pattern(element, elements);
}

/// Number of ranks that do not hold what they should.
int64_t wrong_ranks(const ReductionCase& c, const std::vector<Reduced>& got) {
  const int64_t world = c.nodes * c.ranks_per_node;
  int64_t wrong = 0;
  for (int64_t rank = 0; rank < world; ++rank) {
    const Range want = owned_range(c.nodes, c.ranks_per_node, c.elements, rank);
    const Reduced& r = got[static_cast<size_t>(rank)];
    bool right = r.not_finite == 0 && r.range.size() == want.size() &&
                 (want.size() == 0 || r.range.begin == want.begin);
    for (int64_t i = 0; right && i < want.size(); ++i)
      right = r.sums[0][i] ==
              static_cast<float>(world * (world + 1) / 2) * pattern(want.begin + i, c.elements);
    wrong += !right;
  }
  return wrong;
}

TEST(QuantizedReduction, IsExactOnTheRankThatOwnsItOnEveryGrid) {
  for (int64_t nodes = 1; nodes <= 4; ++nodes) {
    for (int64_t per_node = 1; per_node <= 8; ++per_node) {
      // Fewer elements than ranks, no multiple of anything, and one of every shard's length.
      for (const int64_t elements : {int64_t{5}, int64_t{777}, nodes * per_node * 48}) {
        const ReductionCase c{nodes, per_node, elements, "int4/16"};
        const auto got = test::reduce_on_ranks(c, 1, [&](int64_t rank, int64_t, int64_t i) {
          return whole_number(rank, i, elements);
        });
        EXPECT_EQ(wrong_ranks(c, got), 0)
            << nodes << " x " << per_node << ", " << elements << " elements";
      }
    }
  }
}

// Parts are cut over the ranks of a node first. A hop between nodes that takes them as if cut over
// the nodes alone leaves what it sums on the wrong ranks.
TEST(QuantizedReduction, WithoutTheNestingOfHopsResultsAreOnTheWrongRanks) {
  for (const auto& [nodes, per_node] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {2, 4}, {3, 2}, {3, 8}, {4, 3}}) {
    const ReductionCase c{nodes, per_node, nodes * per_node * 48, "int4/16"};
    const auto gradient = [&](int64_t rank, int64_t, int64_t i) {
      return whole_number(rank, i, c.elements);
    };
    const auto got = test::reduce_on_ranks(c, 1, gradient, [](program::Program& program) {
      for (program::Group& group : program.groups) group.nest.clear();
    });
    // Only the first rank of each node has the same parts either way.
    EXPECT_GE(wrong_ranks(c, got), nodes * (per_node - 1)) << nodes << " x " << per_node;
  }
}

float normal(int64_t rank, int64_t round, int64_t element) {
  const RandomStream stream(5, "normal" + std::to_string(rank));
  float sum = -6;
  for (uint64_t k = 0; k < 12; ++k)
    sum +=
        static_cast<float>(stream.uniform(static_cast<uint64_t>(round * 65536 + element) * 12 + k));
  return sum;
}

// A step is a / 7 with a of a block of 64 between 1.9 and 3.3 standard deviations, nearly always:
// an error of 0.08 to 0.14 of them for each encode (step / sqrt(12)), as independent as the
// elements. A sum of N has sqrt(N) deviations, its inner pieces sqrt(N) such errors, its outer ones
// as many of larger numbers; with two hops sqrt(2) of it.
TEST(QuantizedReduction, IsNearTheExactSumAndUnbiased) {
  for (const auto& [nodes, per_node] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {1, 4}, {4, 1}, {3, 3}, {2, 8}}) {
    constexpr int64_t kRounds = 8, kElements = 1000;
    const ReductionCase c{nodes, per_node, kElements, "int4/64"};
    const auto got = test::reduce_on_ranks(c, kRounds, normal);
    double squares = 0, error = 0, sum_squares = 0;
    for (const Reduced& r : got) {
      for (int64_t round = 0; round < kRounds; ++round) {
        for (int64_t i = 0; i < r.range.size(); ++i) {
          double want = 0;
          for (int64_t rank = 0; rank < nodes * per_node; ++rank)
            want += normal(rank, round, r.range.begin + i);
          const double apart = r.sums[round][i] - want;
          squares += apart * apart;
          error += apart;
          sum_squares += want * want;
        }
      }
    }
    const double hops = nodes > 1 && per_node > 1 ? std::sqrt(2.0) : 1.0;
    const double relative = std::sqrt(squares / sum_squares);
    EXPECT_GT(relative, 0.08 * hops) << nodes << " x " << per_node;
    EXPECT_LT(relative, 0.14 * hops) << nodes << " x " << per_node;
    // The mean of as many errors lies within four of its deviations.
    EXPECT_LT(std::abs(error), 4 * std::sqrt(squares)) << nodes << " x " << per_node;
  }
}

// A hop without a codec is the plain reduce-scatter, beside one with a codec too.
TEST(QuantizedReduction, WithoutACodecEqualsThePlainSum) {
  const ReductionCase c{3, 4, 1234, "none"};
  const auto got = test::reduce_on_ranks(c, 1, normal);
  for (int64_t rank = 0; rank < 12; ++rank) {
    const Reduced& r = got[static_cast<size_t>(rank)];
    ASSERT_EQ(r.range.begin, owned_range(3, 4, 1234, rank).begin);
    for (int64_t i = 0; i < r.range.size(); ++i) {
      // In rank order inside a node, then in the order of nodes.
      float want = 0;
      for (int64_t node = 0; node < 3; ++node) {
        float inner = 0;
        for (int64_t k = 0; k < 4; ++k) {
          const float x = normal(node * 4 + k, 0, r.range.begin + i);
          inner = k == 0 ? x : inner + x;
        }
        want = node == 0 ? inner : want + inner;
      }
      ASSERT_EQ(r.sums[0][i], want) << rank;
    }
  }
}

}  // namespace
}  // namespace strait
