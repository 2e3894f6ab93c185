// Lengths against the figures that were published with them.
#include "strait/data/lengths.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"

namespace strait {
namespace {

std::vector<int64_t> many(const LengthDistribution& from, uint64_t count) {
  std::vector<int64_t> lengths;
  for (uint64_t i = 0; i < count; ++i) lengths.push_back(from.length(i));
  return lengths;
}

/// Shares of documents, tokens and squares above a length.
struct Shares {
  double mean = 0, documents = 0, tokens = 0, squares = 0;
};
Shares above(const std::vector<int64_t>& lengths, int64_t limit) {
  Shares all, some;
  for (const int64_t length : lengths) {
    const double s = static_cast<double>(length);
    for (Shares* sum : {&all, &some})
      if (sum == &all || length > limit) {
        sum->documents += 1;
        sum->tokens += s;
        sum->squares += s * s;
      }
  }
  return {all.tokens / all.documents, some.documents / all.documents, some.tokens / all.tokens,
          some.squares / all.squares};
}

TEST(LengthsTest, TheCorpusHasTheShapeOfItsTable) {
  const std::vector<int64_t> lengths = many({"corpus", 1}, 400000);
  const Shares shares = above(lengths, 8192);
  EXPECT_NEAR(shares.mean, 1783, 50);
  EXPECT_NEAR(shares.documents, 0.0259, 0.001);
  EXPECT_NEAR(shares.tokens, 0.46, 0.02);
  EXPECT_NEAR(shares.squares, 0.96, 0.02);
  EXPECT_NEAR(above(lengths, 500).documents, 1 - 0.4675, 0.005);
  EXPECT_LE(std::ranges::max(lengths), 196608);
  EXPECT_GE(std::ranges::min(lengths), 1);
}

TEST(LengthsTest, MockSetsAreClippedLogNormals) {
  std::vector<int64_t> lengths = many({"lognormal-8k", 2}, 100001);
  std::ranges::sort(lengths);
  EXPECT_EQ(lengths.front(), 1024);
  EXPECT_EQ(lengths.back(), 32768);
  EXPECT_NEAR(static_cast<double>(lengths[50000]), 8192 * std::exp(-1.1 * 1.1 / 2), 100);
  EXPECT_EQ(std::ranges::max(many({"lognormal-2k", 2}, 10000)), 4096);
}

TEST(LengthsTest, ProLongHasMostOfItsTokensInPieces) {
  EXPECT_NEAR(above(many({"prolong", 3}, 400000), 65535).tokens, 0.6, 0.05);
}

/// log P(longer than x) falls by alpha = 1.2 per e-fold.
TEST(LengthsTest, ParetoHasItsTail) {
  const std::vector<int64_t> lengths = many({"pareto", 4}, 400000);
  const double near = above(lengths, 16384).documents, far = above(lengths, 131072).documents;
  EXPECT_NEAR(std::log(near / far) / std::log(8.0), 1.2, 0.1);
}

TEST(LengthsTest, ScalesCutsAndRepeats) {
  const LengthDistribution small("corpus", 5, 0.01, 100), again("corpus", 5, 0.01, 100);
  EXPECT_EQ(many(small, 1000), many(again, 1000));
  EXPECT_EQ(std::ranges::max(many(small, 10000)), 100);
  const LengthDistribution whole("corpus", 5);
  EXPECT_EQ(small.length(7),
            std::clamp<int64_t>(std::llround(0.01 * static_cast<double>(whole.length(7))), 1, 100));
  const std::vector<int64_t> batch = whole.batch(10, 100000);
  int64_t sum = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    EXPECT_EQ(batch[i], whole.length(10 + i));
    sum += batch[i];
  }
  EXPECT_LE(sum, 100000);
  EXPECT_GT(sum + whole.length(10 + batch.size()), 100000);
}

TEST(LengthsTest, RefusesUnknownNamesWithTheNearest) {
  try {
    LengthDistribution("lognormal-4k", 1);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("nearest: 'lognormal-"), std::string::npos);
  }
  EXPECT_THROW(LengthDistribution("corpus", 1, 0), UserError);
}

}  // namespace
}  // namespace strait
