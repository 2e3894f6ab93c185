// Data of no file: documents as long as drawn, the same everywhere.
#include "strait/data/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "strait/data/token_batches.h"
#include "tests/data/expect_user_error.h"

namespace strait {
namespace {

using testing::expect_user_error;

DataOptions options_of(const std::string& path) {
  DataOptions options;
  options.path = path;
  return options;
}

TEST(SyntheticData, DocumentsAreAsLongAsDrawn) {
  const DataOptions options =
      options_of("synthetic:lengths/corpus/scale=0.05/longest=400/tokens=20000");
  const Corpus corpus = make_corpus(options);
  EXPECT_EQ(corpus.tokenizer->vocabulary_size(), kSyntheticVocabulary);
  EXPECT_EQ(corpus.training.tokens.size(), 18000);
  EXPECT_EQ(corpus.validation.tokens.size(), 2000);
  const LengthDistribution lengths = parse_synthetic(options.path).lengths();
  const TokenBatches batches(corpus, 400, 1000, 1);
  for (int64_t document = 0; document + 1 < batches.documents(); ++document)
    EXPECT_EQ(batches.length(document), lengths.length(static_cast<uint64_t>(document)));
  EXPECT_EQ(corpus.validation.document_starts.front(), 0);
  EXPECT_EQ(make_corpus(options).training.tokens, corpus.training.tokens);
}

/// Seven of ten tokens follow from the one before.
TEST(SyntheticData, AModelHasSomethingToLearn) {
  DataOptions options = options_of("synthetic:lengths/lognormal-2k/tokens=50000");
  options.tokenizer = "ids:100";
  const Corpus corpus = make_corpus(options);
  const std::vector<int32_t> tokens = corpus.training.tokens.to_vector();
  std::map<std::pair<int32_t, int32_t>, int64_t> followers;
  for (size_t i = 1; i < tokens.size(); ++i) {
    ASSERT_LT(tokens[i], 100);
    ++followers[{tokens[i - 1], tokens[i]}];
  }
  std::map<int32_t, int64_t> most;
  for (const auto& [pair, count] : followers) most[pair.first] = std::max(most[pair.first], count);
  int64_t foreseen = 0;
  for (const auto& [token, count] : most) foreseen += count;
  EXPECT_NEAR(static_cast<double>(foreseen) / static_cast<double>(tokens.size()), 0.7, 0.02);
}

TEST(SyntheticData, AHistogramIsReadFromItsFile) {
  const std::string folder = std::filesystem::temp_directory_path() / "strait=lengths";
  std::filesystem::create_directories(folder + "/of data");
  const std::string file = folder + "/of data/scale=2.csv";
  std::ofstream(file) << "100 1\n200 3\n";
  const std::string path = "synthetic:lengths/histogram/scale=0.5/tokens=20000/file=" + file;
  const SyntheticData data = parse_synthetic(path);
  EXPECT_EQ(data.file, file);
  EXPECT_EQ(data.scale, 0.5);
  const Corpus corpus = make_corpus(options_of(path));
  const TokenBatches batches(corpus, 400, 1000, 1);
  for (int64_t document = 0; document + 1 < batches.documents(); ++document) {
    EXPECT_LE(batches.length(document), 100);
    EXPECT_EQ(batches.length(document), data.lengths().length(static_cast<uint64_t>(document)));
  }
  std::ofstream(file) << "100 one\n";
  expect_user_error([&] { make_corpus(options_of(path)); }, {"'one'"}, "data.path");
  std::filesystem::remove_all(folder);
  expect_user_error([&] { make_corpus(options_of(path)); }, {"scale=2.csv"}, "data.path");
}

TEST(SyntheticData, WhatCannotBeMadeIsRefusedWithTheNearest) {
  const auto refused = [](const std::string& path, const std::string& text) {
    expect_user_error([&] { make_corpus(options_of(path)); }, {text}, "data.path");
  };
  refused("synthetic:images", "nearest: \"synthetic:lengths/corpus\"");
  refused("synthetic:lengths/corpis", "nearest: 'corpus'");
  refused("synthetic:lengths/histogramm", "nearest: 'histogram'");
  refused("synthetic:lengths/histogram/scale=2",
          "nearest: \"synthetic:lengths/histogram/scale=2/file=lengths.csv\"");
  refused("synthetic:lengths/corpus/file=a.csv",
          "nearest: \"synthetic:lengths/histogram/file=a.csv\"");
  refused("synthetic:lengths/histogram/fil=a.csv", "nearest: 'file'");
  refused("synthetic:lengths/corpus/scala=2", "nearest: 'scale'");
  refused("synthetic:lengths/corpus/longest=much", "longest must be a number from 0");
  refused("synthetic:lengths/corpus/scale=0", "scale must be a number from");
  DataOptions options = options_of("synthetic:lengths/corpus");
  options.tokenizer = "byte";
  expect_user_error([&] { make_corpus(options); }, {"ids:50257"}, "data.tokenizer");
  options.tokenizer = "char";
  options.document_separator = "x";
  expect_user_error([&] { make_corpus(options); }, {"its documents are known"},
                    "data.document_separator");
}

}  // namespace
}  // namespace strait
