// Data of no file: documents as long as drawn, the same everywhere.
#include "strait/data/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "strait/data/loader.h"
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

/// Each a record: what is an image for one reader is the same image for all.
TEST(SyntheticData, ImagesAreRecords) {
  const Corpus corpus = make_corpus(options_of("synthetic:images/size=6/colors=2/count=50"));
  EXPECT_EQ(corpus.training.tokens.size(), 45 * 72);
  EXPECT_EQ(corpus.validation.tokens.size(), 5 * 72);
  EXPECT_FALSE(corpus.training.has_documents());
  const SequenceLoader loader(corpus, 72, 7);
  EXPECT_EQ(loader.windows_per_epoch(), 45);
  const SyntheticImages images{6, 2, 50};
  std::vector<int32_t> image(72);
  std::map<int64_t, int> seen;  // of each record
  BatchBuffer batch;
  for (int64_t number = 45; number < 90; ++number) {
    loader.fill(number, 1, batch);
    const int64_t record = loader.window_start(number) / 72;
    ++seen[record];
    draw_image(images, static_cast<uint64_t>(record), image);
    EXPECT_EQ(batch.inputs, image);
    EXPECT_EQ(batch.targets, image);
  }
  EXPECT_EQ(seen.size(), 45u);
  const ValidationWindows validation(corpus, 72);
  ASSERT_EQ(validation.windows(), 5);
  validation.fill(4, 2, batch);
  draw_image(images, 49, image);
  EXPECT_TRUE(std::equal(image.begin(), image.end(), batch.inputs.begin()));
  EXPECT_EQ(batch.targets.back(), kIgnoredTarget);  // behind the last
  expect_user_error([&] { SequenceLoader(corpus, 71, 7); }, {"context is 72"}, "data.path");
}

/// Levels are in range and differ from image to image and within one.
TEST(SyntheticData, ImagesShowSomething) {
  const SyntheticImages images;
  std::vector<int32_t> image(static_cast<size_t>(images.pixels())), other = image;
  for (uint64_t number = 0; number < 20; ++number) {
    draw_image(images, number, image);
    draw_image(images, number + 1, other);
    const auto [least, most] = std::ranges::minmax(image);
    EXPECT_GE(least, 0);
    EXPECT_LE(most, 255);
    EXPECT_GT(most - least, 20) << number;
    EXPECT_NE(image, other);
  }
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
  refused("synthetic:lengths/corpus/scale=0.1/scale=2", "'scale' stands there twice");
  refused("synthetic:images/size=8/size=8", "'size' stands there twice");
  refused("synthetic:lengthy", "nearest: \"synthetic:lengths/corpus\"");
  refused("synthetic:images/width=8", "nearest: 'size'");
  refused("synthetic:images/size=0", "size must be a number from 1");
  refused("synthetic:images8", "nearest: \"synthetic:images\"");
  refused("synthetic:images/size=4096/count=1000000", "nearest: count=42");
  refused("synthetic:images/size=2048/colors=1024", "nearest: size=1024");
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
