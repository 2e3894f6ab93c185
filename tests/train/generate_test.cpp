// Generation: the cache equals full recompute, and sampling does what its options say.
#include "strait/train/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "strait/base/errors.h"
#include "strait/comm/threads/thread_world.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using train::sample_token;
using train::Sampling;

const std::vector<std::string> kGpt2 = {"train.steps=5"};
const std::vector<std::string> kLlama = {"train.steps=5", "model.family=llama",
                                         "model.shape.kv_heads=1"};

const std::vector<std::string> kMistral = {"train.steps=5", "model.family=mistral",
                                           "model.shape.kv_heads=1", "model.shape.window=4",
                                           "model.shape.bias=false"};
const std::vector<std::string> kQwen2 = {"train.steps=5", "model.family=qwen2",
                                         "model.shape.kv_heads=1"};
const std::vector<std::string> kQwen3 = {"train.steps=5", "model.family=qwen3",
                                         "model.shape.head_width=14", "model.shape.bias=false"};
const std::vector<std::string> kOlmo2 = {"train.steps=5", "model.family=olmo2",
                                         "model.shape.bias=false"};

const std::vector<std::string> kGemma3 = {"train.steps=5",
                                          "model.family=gemma3",
                                          "model.shape.kv_heads=1",
                                          "model.shape.head_width=14",
                                          "model.shape.window=4",
                                          "model.shape.window_pattern=2",
                                          "model.shape.query_scalar=9",
                                          "model.rope.local_theta=100",
                                          "model.shape.bias=false"};

const std::vector<std::string> kGemma2 = {
    "train.steps=5",           "model.family=gemma2",          "model.shape.kv_heads=1",
    "model.shape.window=4",    "model.shape.window_pattern=2", "model.shape.score_cap=0.1",
    "model.shape.logit_cap=1", "model.shape.bias=false"};

/// What the trained model is made with, beside small_run.
class Generation : public ::testing::TestWithParam<std::vector<std::string>> {
 protected:
  Generation() {
    const strait::Run run = test::small_run(folder_.path(), GetParam());
    test::train_small(run, 2, folder_.path() + "/run");
    reader_ = std::make_unique<checkpoint::CheckpointReader>(folder_.path() + "/run");
    shape_ = model_shape(run.model, reader_->manifest().model.at("vocabulary").as_integer());
    Cluster cluster;
    cluster.name = "one";
    cluster.levels = {{"world", 1, 1e9, 0, 1}};
    worlds_ = comm::make_thread_worlds(1, cluster);
    generator_ = std::make_unique<train::Generator>(
        shape_, train::Generator::Resources{Dtype::kFloat64, 1}, worlds_->world(0), *reader_);
  }
  test::TemporaryFolder folder_;
  std::unique_ptr<checkpoint::CheckpointReader> reader_;
  ModelShape shape_;
  std::unique_ptr<comm::ThreadWorlds> worlds_;
  std::unique_ptr<train::Generator> generator_;
};

TEST_P(Generation, TheCacheEqualsFullRecomputeForEverySplitOfTheTokens) {
  const std::vector<int32_t> tokens = {1, 4, 2, 7, 3, 3, 9, 0, 5, 8, 6, 2, 1};
  const int64_t context = shape_.options.context;
  ASSERT_EQ(static_cast<int64_t>(tokens.size()), context);
  for (int64_t length = 1; length <= context; ++length) {
    const std::span<const int32_t> text = std::span(tokens).first(static_cast<size_t>(length));
    generator_->reset();
    const std::vector<double> whole = generator_->feed(text);
    for (int64_t first = 1; first < length; ++first) {
      generator_->reset();
      generator_->feed(text.first(static_cast<size_t>(first)));
      std::vector<double> last;
      for (int64_t t = first; t < length; ++t)
        last = generator_->feed(text.subspan(static_cast<size_t>(t), 1));
      ASSERT_EQ(last.size(), whole.size());
      for (size_t v = 0; v < whole.size(); ++v)
        ASSERT_NEAR(last[v], whole[v], 1e-11 * (1 + std::abs(whole[v])))
            << length << " from " << first;
    }
  }
}

TEST_P(Generation, GoesOnBehindAFullContextAndIsReproducible) {
  const auto text_of = [&](uint64_t seed) {
    std::vector<int32_t> text = {1, 2, 3};
    int64_t told = 0;
    generator_->generate(text, 40, {1.0, 0, 1.0, seed}, [&](int32_t) { ++told; });
    EXPECT_EQ(told, 40);
    return text;
  };
  const std::vector<int32_t> first = text_of(5);
  EXPECT_EQ(first.size(), 43u);
  EXPECT_EQ(text_of(5), first);
  EXPECT_NE(text_of(6), first);
}

TEST_P(Generation, TokensOutOfRangeAndTooManyAreRefused) {
  const std::vector<int32_t> wrong = {static_cast<int32_t>(shape_.vocabulary)};
  EXPECT_THROW(generator_->feed(wrong), UserError);
  const std::vector<int32_t> many(static_cast<size_t>(shape_.options.context) + 1, 1);
  generator_->reset();
  EXPECT_THROW(generator_->feed(many), UserError);
}

INSTANTIATE_TEST_SUITE_P(Families, Generation,
                         ::testing::Values(kGpt2, kLlama, kMistral, kQwen2, kQwen3, kOlmo2, kGemma2,
                                           kGemma3));

TEST(Sampling, TemperatureTopKAndTopP) {
  const std::vector<double> logits = {1.0, 3.0, 2.0, -1.0};
  EXPECT_EQ(sample_token(logits, {0.0, 0, 1.0, 1}, 0), 1);
  std::set<int32_t> top_two, nucleus, all;
  for (uint64_t draw = 0; draw < 2000; ++draw) {
    top_two.insert(sample_token(logits, {1.0, 2, 1.0, 1}, draw));
    nucleus.insert(
        sample_token(logits, {1.0, 0, 0.6, 1}, draw));  // token 1 alone has 0.64 of the mass
    all.insert(sample_token(logits, {2.0, 0, 1.0, 1}, draw));
  }
  EXPECT_EQ(top_two, (std::set<int32_t>{1, 2}));
  EXPECT_EQ(nucleus, (std::set<int32_t>{1}));
  EXPECT_EQ(all, (std::set<int32_t>{0, 1, 2, 3}));
}

TEST(Sampling, TopPIsAShareOfTheTopK) {
  const std::vector<double> alike(100, 0.0);
  std::set<int32_t> both;
  for (uint64_t draw = 0; draw < 200; ++draw)
    both.insert(sample_token(alike, {1.0, 10, 0.5, 1}, draw));
  EXPECT_EQ(both, (std::set<int32_t>{0, 1, 2, 3, 4}));
}

TEST(Sampling, DrawsFollowTheProbabilities) {
  const std::vector<double> logits = {std::log(0.2), std::log(0.5), std::log(0.3)};
  std::vector<int> counts(3, 0);
  constexpr int kDraws = 20000;
  for (uint64_t draw = 0; draw < kDraws; ++draw)
    ++counts[static_cast<size_t>(sample_token(logits, {1.0, 0, 1.0, 9}, draw))];
  // Five standard deviations of a binomial: sqrt(n p (1 - p)) < 71.
  EXPECT_NEAR(counts[0], 0.2 * kDraws, 355);
  EXPECT_NEAR(counts[1], 0.5 * kDraws, 355);
  EXPECT_NEAR(counts[2], 0.3 * kDraws, 355);
}

TEST(Sampling, RowsThatStandForNoTokenAreNotDrawn) {
  const std::vector<double> logits = {0.0, 1.0, 9.0, std::nan("")};
  EXPECT_EQ(sample_token(logits, {0.0, 0, 1.0, 1, 2}, 0), 1);
  for (uint64_t draw = 0; draw < 50; ++draw)
    EXPECT_LT(sample_token(logits, {1.0, 0, 1.0, 1, 2}, draw), 2);
}

TEST(Sampling, WhatIsNoNumberIsNotSampled) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), kInfinity})
    for (const size_t at : {0, 1, 2}) {
      std::vector<double> logits = {0.5, 1.5, 0.0};
      logits[at] = bad;
      EXPECT_THROW(sample_token(logits, {0.0, 0, 1.0, 1}, 0), NonFinite);
      EXPECT_THROW(sample_token(logits, {1.0, 0, 1.0, 1}, 0), NonFinite);
    }
  // A token that is ruled out is no damage.
  EXPECT_EQ(sample_token(std::vector<double>{-kInfinity, 0.0}, {1.0, 0, 1.0, 1}, 0), 1);
}

}  // namespace
}  // namespace strait
