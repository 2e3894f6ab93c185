// PowerSGD as a reducer: exact for sums of low rank, near the plain sum at full rank, equal on all
// ranks, what is sent and what is left adding up, exact bytes.
#include <gtest/gtest.h>

#include <cmath>

#include "strait/base/random.h"
#include "tests/train/reduction.h"

namespace strait {
namespace {

using test::Reduced;
using test::ReductionCase;

constexpr int64_t kRows = 24, kColumns = 18, kVector = 40;
constexpr int64_t kElements = kRows * kColumns + kVector;

ReductionCase case_of(int64_t rank, int64_t ranks, bool feedback) {
  const std::string codec = "powersgd/" + std::to_string(rank) + (feedback ? "+ef" : "");
  ReductionCase c{1, ranks, kElements, codec, false};
  c.layers = codec::parse_runs(codec + ":" + std::to_string(kRows * kColumns) +
                               "|none:" + std::to_string(kVector) + "@" + std::to_string(ranks));
  c.parameters = {{"matrix", {kRows, kColumns}, 0}, {"vector", {kVector}, kRows * kColumns}};
  return c;
}

double normal(const char* name, int64_t rank, int64_t round, int64_t i) {
  return RandomStream(3, name, static_cast<uint64_t>(rank), static_cast<uint64_t>(round))
      .normal(static_cast<uint64_t>(i));
}

/// The sum over ranks has rank 3, that of one rank does not matter.
float low(int64_t rank, int64_t round, int64_t element) {
  if (element >= kRows * kColumns)
    return static_cast<float>(normal("vector", rank, round, element));
  const int64_t row = element / kColumns, column = element % kColumns;
  double value = 0;
  for (int64_t k = 0; k < 3; ++k)
    value += normal("left", rank, round, 3 * row + k) * normal("right", 0, round, 3 * column + k);
  return static_cast<float>(value);
}

float full(int64_t rank, int64_t round, int64_t element) {
  return static_cast<float>(normal("full", rank, round, element));
}

/// Largest difference from the plain sum, and the largest of that.
std::pair<double, double> apart(const std::vector<Reduced>& got, int64_t round,
                                const test::GradientOf& gradient) {
  double difference = 0, largest = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    double sum = 0;
    for (size_t rank = 0; rank < got.size(); ++rank)
      sum += gradient(static_cast<int64_t>(rank), round, i);
    const double is = got[0].sums[static_cast<size_t>(round)][static_cast<size_t>(i)];
    difference = std::max(difference, std::abs(is - sum));
    largest = std::max(largest, std::abs(sum));
  }
  return {difference, largest};
}

// L12, and L7: the same bits on all ranks.
TEST(LowRankReduction, SumsOfLowRankAreExact) {
  for (const int64_t ranks : {2, 3, 4})
    for (const int64_t rank : {3, 5}) {
      const auto got = test::reduce_on_ranks(case_of(rank, ranks, true), 2, low);
      for (const Reduced& other : got) EXPECT_EQ(other.sums, got[0].sums);
      for (int64_t round = 0; round < 2; ++round) {
        const auto [difference, largest] = apart(got, round, low);
        EXPECT_LT(difference, 1e-5 * largest) << ranks << " rank " << rank << " round " << round;
      }
    }
}

// L8: with factors as wide as the matrix it is the plain all-reduce, and below that it is not.
TEST(LowRankReduction, FullRankIsThePlainSum) {
  const auto all = test::reduce_on_ranks(case_of(kColumns, 3, false), 1, full);
  const auto [difference, largest] = apart(all, 0, full);
  EXPECT_LT(difference, 1e-5 * largest);
  const auto few = test::reduce_on_ranks(case_of(4, 3, false), 1, full);
  EXPECT_GT(apart(few, 0, full).first, 0.1 * largest);
  // Vectors are summed as they are, in rank order.
  for (int64_t i = kRows * kColumns; i < kElements; ++i) {
    const float sum = full(0, 0, i) + full(1, 0, i) + full(2, 0, i);
    EXPECT_EQ(few[0].sums[0][static_cast<size_t>(i)], sum);
  }
}

// L11: all that was given is in what came out or in what the ranks keep.
TEST(LowRankReduction, WhatIsSentAndWhatIsLeftIsWhatWasGiven) {
  constexpr int64_t kRounds = 8, kRanks = 3;
  const auto got = test::reduce_on_ranks(case_of(2, kRanks, true), kRounds, full);
  double lost = 0;
  for (int64_t i = 0; i < kElements; ++i) {
    const size_t at = static_cast<size_t>(i);
    double given = 0, there = 0, sent = 0;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      for (int64_t round = 0; round < kRounds; ++round) given += full(rank, round, i);
      ASSERT_EQ(got[static_cast<size_t>(rank)].residuals.size(), 1u);
      there += got[static_cast<size_t>(rank)].residuals[0][at];
    }
    for (const auto& sum : got[0].sums) sent += sum[at];
    EXPECT_NEAR(sent + there, given, 1e-4) << i;
    lost = std::max(lost, std::abs(sent - given));
  }
  EXPECT_GT(lost, 1) << "nothing was lost, so nothing was shown";
}

// The right factors of one step are where the next one starts: a sum that stays comes out better.
TEST(LowRankReduction, FactorsAreKeptForTheNextStep) {
  const auto still = [](int64_t rank, int64_t, int64_t i) { return full(rank, 0, i); };
  const auto got = test::reduce_on_ranks(case_of(4, 2, false), 6, still);
  const auto error = [&](int64_t round) {
    double squares = 0;
    for (int64_t i = 0; i < kElements; ++i)
      squares += std::pow(got[0].sums[static_cast<size_t>(round)][static_cast<size_t>(i)] -
                              full(0, 0, i) - full(1, 0, i),
                          2);
    return squares;
  };
  EXPECT_LT(error(5), 0.97 * error(0));
}

TEST(LowRankReduction, NumbersThatAreNotFiniteAreCounted) {
  const auto got =
      test::reduce_on_ranks(case_of(2, 2, true), 1, [](int64_t rank, int64_t round, int64_t i) {
        if (rank == 1 && (i == 5 || i == kElements - 1)) return INFINITY;
        return full(rank, round, i);
      });
  EXPECT_EQ(got[0].not_finite + got[1].not_finite, 2);
  for (const float value : got[0].sums[0]) EXPECT_TRUE(std::isfinite(value));
}

// Two all-reduces: rank (rows + columns) numbers and the vector, each sent n - 1 times there and
// back.
TEST(LowRankReduction, BytesAreThoseOfTheFactors) {
  for (const int64_t n : {2, 3, 4, 8}) {
    Ledger all;
    for (const Reduced& rank : test::reduce_on_ranks(case_of(3, n, true), 1, full))
      all.merge(rank.traffic);
    int64_t bytes = 0;
    for (const Traffic& row : all.rows()) bytes += row.payload_bytes + row.metadata_bytes;
    EXPECT_EQ(bytes, 2 * (n - 1) * 4 * (3 * (kRows + kColumns) + kVector)) << n;
  }
}

}  // namespace
}  // namespace strait
