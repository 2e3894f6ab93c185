// Lengths against the figures that were published with them.
#include "strait/data/lengths.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

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

/// A file that ends with the test.
class HistogramFile : public ::testing::Test {
 protected:
  HistogramFile()
      : path_((std::filesystem::temp_directory_path() /
               ("strait-lengths-" + std::to_string(::getpid()) + ".csv"))
                  .string()) {}
  ~HistogramFile() override { std::filesystem::remove(path_); }
  std::vector<LengthBin> read(const std::string& text) {
    std::ofstream(path_) << text;
    return read_length_histogram(path_);
  }
  std::string path_;
};

TEST_F(HistogramFile, LengthsHaveItsShares) {
  const std::vector<LengthBin> bins =
      read("# longest, documents\n\n16, 25\n64\t50  # most\n\n128, 0\n1000 ,2.5e1");
  ASSERT_EQ(bins.size(), 4U);
  EXPECT_EQ(bins[0].longest, 16);
  EXPECT_EQ(bins[1].share, 50);
  EXPECT_EQ(bins[3].longest, 1000);
  EXPECT_EQ(bins[3].share, 25);
  EXPECT_EQ(read("\xEF\xBB\xBF"
                 "16, 25\n")[0]
                .longest,
            16);  // as spreadsheets write it
  const std::vector<int64_t> lengths = many({bins, 1}, 100000);
  EXPECT_NEAR(above(lengths, 16).documents, 0.75, 0.01);
  EXPECT_NEAR(above(lengths, 64).documents, 0.25, 0.01);
  EXPECT_EQ(above(lengths, 64).documents, above(lengths, 128).documents);
  EXPECT_NEAR(above(lengths, 0).mean, 0.25 * 8.5 + 0.5 * 40.5 + 0.25 * 564.5, 2);
  EXPECT_EQ(std::ranges::min(lengths), 1);
  EXPECT_EQ(std::ranges::max(lengths), 1000);
  EXPECT_EQ(std::ranges::max(many({bins, 1, 0.5, 300}, 1000)), 300);
  // The table of the general corpus as a file is the general corpus.
  const std::vector<LengthBin> corpus = read(
      "10 .22\n50 2.91\n100 5.20\n200 10.23\n500 28.19\n1024 24.64\n2048 15.65\n4096 7.34\n"
      "8192 3.05\n16384 1.29\n32768 .85\n65536 .14\n131072 .17\n196608 .14\n");
  EXPECT_EQ(many({corpus, 7}, 1000), many({"corpus", 7}, 1000));
}

TEST_F(HistogramFile, AWrongOneNamesFileLineAndTheNearest) {
  struct Case {
    const char* text;
    std::optional<int64_t> line;
    const char* message;
  };
  const Case cases[] = {{"16 1\n64 many\n", 2, "'many' in a histogram of lengths is no number"},
                        {"16 nan\n", 1, "'nan' in a histogram of lengths is no number"},
                        {"16\n", 1, "has 1 numbers"},
                        {"16 1 2\n", 1, "has 3 numbers"},
                        {"# none\n0 1\n", 2, "length 0 of a histogram must be a whole number"},
                        {"1.5 1\n", 1, "whole number from 1 to 2147483647"},
                        {"1e300 1\n", 1, "whole number from 1"},
                        {"16 -1\n", 1, "the nearest valid value is 0"},
                        {"64 1\n16 1\n", 2, "the nearest valid length is 65"},
                        {"64 1\n64 1\n", 2, "the nearest valid length is 65"},
                        {"", std::nullopt, "has no documents"},
                        {"64 0\n", std::nullopt, "has no documents"},
                        {"16 1e308\n64 1e308\n", std::nullopt, "has no documents"}};
  for (const Case& bad : cases) {
    try {
      read(bad.text);
      ADD_FAILURE() << "accepted: " << bad.text;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().file, path_);
      EXPECT_EQ(error.place().line, bad.line) << bad.text;
      EXPECT_EQ(error.place().key, "data.path");
      EXPECT_NE(std::string(error.what()).find(bad.message), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(read_length_histogram(path_ + ".none"), UserError);
}

}  // namespace
}  // namespace strait
