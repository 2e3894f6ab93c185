#include "strait/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "strait/tokenizer/byte_tokenizer.h"
#include "tests/data/expect_user_error.h"
#include "tests/data/sample_texts.h"

namespace strait {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::expect_user_error;
using ::testing::IsEmpty;

/// A corpus whose tokens are their own positions, so that content shows where it comes from.
Corpus numbered(int64_t training, int64_t validation = 0) {
  Corpus corpus;
  corpus.source = "numbers.txt";
  corpus.tokenizer = std::make_shared<ByteTokenizer>();
  const auto positions = [](int64_t count) {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    std::iota(tokens.begin(), tokens.end(), 0);
    return Tokens(std::move(tokens));
  };
  corpus.training.tokens = positions(training);
  corpus.validation.tokens = positions(validation);
  return corpus;
}

bool equal_batches(const BatchBuffer& a, const BatchBuffer& b) {
  return a.inputs == b.inputs && a.targets == b.targets && a.document_starts == b.document_starts &&
         a.sequences == b.sequences;
}

void append(BatchBuffer& all, const BatchBuffer& more) {
  all.inputs.insert(all.inputs.end(), more.inputs.begin(), more.inputs.end());
  all.targets.insert(all.targets.end(), more.targets.begin(), more.targets.end());
  all.document_starts.insert(all.document_starts.end(), more.document_starts.begin(),
                             more.document_starts.end());
  all.sequences.insert(all.sequences.end(), more.sequences.begin(), more.sequences.end());
}

TEST(SequenceLoader, ASequenceIsARunOfTheTextAndItsTargetsFollow) {
  const Corpus corpus = numbered(1000);
  const SequenceLoader loader(corpus, 16, 7);
  BatchBuffer batch;
  loader.fill(5, 40, batch);
  EXPECT_THAT(batch.document_starts, IsEmpty());
  for (int64_t row = 0; row < 40; ++row) {
    EXPECT_EQ(batch.sequences[row], 5 + row);
    for (int64_t t = 0; t < 16; ++t) {
      EXPECT_EQ(batch.inputs[row * 16 + t], loader.window_start(5 + row) + t);
      EXPECT_EQ(batch.targets[row * 16 + t], batch.inputs[row * 16 + t] + 1);
    }
  }
}

TEST(SequenceLoader, CountsTheTargetsThatAreScored) {
  Corpus plain = numbered(500), started = numbered(500), marked = numbered(500);
  started.training.document_starts = {0, 3, 4, 40, 41, 42, 77, 130, 131, 300, 460};
  marked.training.document_token = 45;
  std::vector<int32_t> tokens = marked.training.tokens.to_vector();
  for (int32_t& token : tokens)
    if (token % 9 < 2) token = 45;
  marked.training.tokens = Tokens(std::move(tokens));
  for (const Corpus* corpus : {&plain, &started, &marked}) {
    const SequenceLoader loader(*corpus, 7, 3);
    int64_t ignored = 0;
    for (int64_t first = 0; first < 300; first += 4) {
      BatchBuffer batch;
      loader.fill(first, 4, batch);
      const int64_t scored = 28 - std::ranges::count(batch.targets, kIgnoredTarget);
      EXPECT_EQ(loader.counted(first, 4), scored) << first;
      ignored += 28 - scored;
    }
    EXPECT_EQ(ignored > 0, corpus != &plain);
  }
}

TEST(SequenceLoader, EveryWindowOnceInEveryEpoch) {
  for (const int64_t context : {1, 2, 7, 16, 33}) {
    for (const int64_t size : {context + 1, 2 * context - 1, 2 * context, 2 * context + 1,
                               3 * context, 10 * context + 3, int64_t{1000}}) {
      if (size < context + 1) continue;
      const Corpus corpus = numbered(size);
      const SequenceLoader loader(corpus, context, 11);
      const int64_t windows = loader.windows_per_epoch();
      ASSERT_GE(windows, 1);
      // At most 2T - 1 tokens are left out of an epoch.
      ASSERT_GE(windows * context, size - 2 * context + 1) << context << " " << size;
      for (int64_t epoch = 0; epoch < 12; ++epoch) {
        std::set<int64_t> starts;
        for (int64_t k = 0; k < windows; ++k)
          starts.insert(loader.window_start(epoch * windows + k));
        ASSERT_EQ(static_cast<int64_t>(starts.size()), windows) << "a window came twice";
        ASSERT_EQ(*starts.rbegin() - *starts.begin(), (windows - 1) * context);
        for (const int64_t start : starts) ASSERT_EQ((start - *starts.begin()) % context, 0);
        ASSERT_GE(*starts.begin(), 0);
        ASSERT_LE(*starts.rbegin() + context, size - 1) << "the last target is outside the text";
      }
    }
  }
}

TEST(SequenceLoader, PhasesAndOrdersDifferBetweenEpochsAndSeeds) {
  const Corpus corpus = numbered(20000);
  const SequenceLoader loader(corpus, 32, 1);
  const int64_t windows = loader.windows_per_epoch();
  std::set<int64_t> phases;
  std::set<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 500; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t k = 0; k < windows; ++k)
      order.push_back(loader.window_start(epoch * windows + k) / 32);
    phases.insert(loader.window_start(epoch * windows) % 32);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
    orders.insert(order);
  }
  // 500 draws of 32 phases: the chance that one is missing is below 32 * (31/32)^500 = 4e-6.
  EXPECT_EQ(phases.size(), 32u);
  EXPECT_EQ(orders.size(), 500u);
  BatchBuffer one;
  BatchBuffer other;
  loader.fill(0, 8, one);
  SequenceLoader(corpus, 32, 2).fill(0, 8, other);
  EXPECT_NE(one.inputs, other.inputs);
}

/// Places of the windows in an epoch, by window.
std::vector<int64_t> places(const SequenceLoader& loader, int64_t epoch) {
  const int64_t windows = loader.windows_per_epoch();
  std::vector<int64_t> starts;
  for (int64_t k = 0; k < windows; ++k) starts.push_back(loader.window_start(epoch * windows + k));
  const int64_t first = *std::min_element(starts.begin(), starts.end());
  std::vector<int64_t> place(static_cast<size_t>(windows));
  for (int64_t k = 0; k < windows; ++k)
    place[static_cast<size_t>((starts[static_cast<size_t>(k)] - first) / loader.context())] = k;
  return place;
}

TEST(SequenceLoader, ShortTextsAreShuffledToo) {
  constexpr int kEpochs = 1000;
  for (const int64_t windows : {2, 5, 20, 47, 49, 60}) {
    const Corpus corpus = numbered(16 * (windows + 1));
    const SequenceLoader loader(corpus, 16, 3);
    ASSERT_EQ(loader.windows_per_epoch(), windows);
    std::vector<double> mean(static_cast<size_t>(windows), 0.0);
    for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
      const std::vector<int64_t> place = places(loader, epoch);
      for (size_t at = 0; at < mean.size(); ++at)
        mean[at] += static_cast<double>(place[at]) / kEpochs;
    }
    // A place is uniform: its deviation is a third of the windows, its mean's a hundredth. Of 49
    // and 60 some windows never come in the short last round.
    const double middle = static_cast<double>(windows - 1) / 2;
    for (size_t at = 0; at < mean.size(); ++at)
      EXPECT_NEAR(mean[at], middle, static_cast<double>(windows) * (windows < 48 ? 0.05 : 0.25))
          << at << " of " << windows;
  }
}

/// Not as a stretch of text that always comes last.
TEST(SequenceLoader, AnEpochEndsWithWindowsFromAllOverTheText) {
  const Corpus corpus = numbered(16 * (3 * SequenceLoader::kStrata + 13));
  const SequenceLoader loader(corpus, 16, 3);
  const int64_t windows = loader.windows_per_epoch();
  ASSERT_EQ(windows % SequenceLoader::kStrata, 12);
  for (int64_t epoch = 0; epoch < 20; ++epoch) {
    std::set<int64_t> twelfths;  // of the text
    const std::vector<int64_t> place = places(loader, epoch);
    for (int64_t at = 0; at < windows; ++at)
      if (place[static_cast<size_t>(at)] >= windows - 12) twelfths.insert(at * 12 / windows);
    EXPECT_EQ(twelfths.size(), 12u);
  }
}

TEST(SequenceLoader, TooFewTokensNameAContextThatIsValid) {
  expect_user_error([] { SequenceLoader(numbered(5), 8, 1); },
                    {"numbers.txt", "has 5 tokens", "model.shape.context <= 4"}, "data.path");
  for (const int64_t tokens : {0, 1}) try {
      SequenceLoader(numbered(tokens), 8, 1);
      ADD_FAILURE() << tokens;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("use a longer text"));
      EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("context <=")));
    }
}

TEST(SequenceLoader, TheUnionOverRanksIsTheSameForEveryWorld) {
  DataOptions options;
  options.tokenizer = "byte";
  options.document_separator = "\n\n";
  const Corpus corpus = make_corpus(testing::english(3000), options);
  const SequenceLoader loader(corpus, 24, 1337);
  constexpr int64_t kBatch = 72;
  BatchBuffer serial;
  loader.fill(0, 10 * kBatch, serial);
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    for (const int64_t micro : {1, 3}) {
      BatchBuffer all;
      for (int64_t step = 0; step < 10; ++step) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const BatchShare share{kBatch, ranks, rank, micro};
          ASSERT_EQ(share.micro_steps() * micro * ranks, kBatch);
          for (int64_t m = 0; m < share.micro_steps(); ++m) {
            BatchBuffer part;
            loader.fill(share.first_sequence(step, m), micro, part);
            append(all, part);
          }
        }
      }
      ASSERT_TRUE(equal_batches(all, serial)) << ranks << " ranks, micro batch " << micro;
    }
  }
}

TEST(SequenceLoader, ResumingAnywhereGivesTheSameSequences) {
  const Corpus corpus = numbered(3000);
  const SequenceLoader loader(corpus, 10, 5);
  BatchBuffer all;
  loader.fill(0, 1000, all);
  for (int64_t k = 0; k < 1000; k += 37) {
    const SequenceLoader fresh(corpus, 10, 5);
    BatchBuffer rest;
    fresh.fill(k, 1000 - k, rest);
    ASSERT_TRUE(std::equal(rest.inputs.begin(), rest.inputs.end(), all.inputs.begin() + k * 10))
        << k;
    ASSERT_TRUE(std::equal(rest.targets.begin(), rest.targets.end(), all.targets.begin() + k * 10))
        << k;
  }
  BatchBuffer picked;
  loader.fill(std::vector<int64_t>{900, 3, 77}, picked);
  EXPECT_THAT(picked.sequences, ElementsAre(900, 3, 77));
  for (int64_t row = 0; row < 3; ++row)
    for (int64_t t = 0; t < 10; ++t)
      EXPECT_EQ(picked.inputs[row * 10 + t], all.inputs[picked.sequences[row] * 10 + t]);
}

TEST(SequenceLoader, FillsFromManyThreadsAndReusesItsBuffers) {
  const Corpus corpus = numbered(5000);
  const SequenceLoader loader(corpus, 20, 9);
  BatchBuffer serial;
  loader.fill(0, 400, serial);
  std::vector<std::thread> threads;
  std::vector<BatchBuffer> parts(4);
  for (int64_t i = 0; i < 4; ++i)
    threads.emplace_back([&, i] { loader.fill(i * 100, 100, parts[i]); });
  BatchBuffer all;
  for (int64_t i = 0; i < 4; ++i) {
    threads[i].join();
    append(all, parts[i]);
  }
  EXPECT_TRUE(equal_batches(all, serial));
  const int32_t* before = parts[0].inputs.data();
  loader.fill(7, 100, parts[0]);
  loader.fill(7, 3, parts[0]);
  EXPECT_EQ(parts[0].inputs.data(), before);
  EXPECT_EQ(parts[0].inputs.size(), 60u);
}

TEST(SequenceLoader, ATextThatIsTooShortIsRefused) {
  const Corpus corpus = numbered(64);
  EXPECT_NO_THROW(SequenceLoader(corpus, 63, 1));
  expect_user_error([&] { SequenceLoader(corpus, 64, 1); },
                    {"numbers.txt", "has 64 tokens", "needs 65", "context 64", "<= 63"},
                    "data.path");
  const Corpus empty = numbered(0);
  expect_user_error([&] { SequenceLoader(empty, 1, 1); }, {"has 0 tokens"}, "data.path");
}

/// What a row must hold, worked out token by token.
void expect_row(const TokenPart& part, int64_t start, int64_t context, const BatchBuffer& batch,
                int64_t row) {
  const std::set<int64_t> firsts(part.document_starts.begin(), part.document_starts.end());
  int32_t document = 0;
  for (int64_t t = 0; t < context; ++t) {
    const int64_t position = start + t;
    if (t > 0 && firsts.count(position)) document = static_cast<int32_t>(t);
    const bool inside = position + 1 < static_cast<int64_t>(part.tokens.size());
    const bool scored = inside && !firsts.count(position + 1);
    ASSERT_EQ(batch.targets[row * context + t], scored ? part.tokens[position + 1] : kIgnoredTarget)
        << t;
    if (inside) {
      ASSERT_EQ(batch.inputs[row * context + t], part.tokens[position]);
      ASSERT_EQ(batch.document_starts[row * context + t], document) << t;
    }
  }
}

TEST(Packing, DocumentsAreMarkedInEveryRow) {
  DataOptions options;
  options.document_separator = "\n\n";
  options.validation_share = 0.4;
  for (const char* tokenizer : {"byte", "char", "bpe:300"}) {
    options.tokenizer = tokenizer;
    const Corpus corpus = make_corpus(testing::english(2000), options);
    ASSERT_GT(corpus.training.document_starts.size(), 20u);
    for (const int64_t context : {1, 2, 5, 64, 500}) {
      const SequenceLoader loader(corpus, context, 3);
      BatchBuffer batch;
      loader.fill(0, 30, batch);
      for (int64_t row = 0; row < 30; ++row)
        expect_row(corpus.training, loader.window_start(row), context, batch, row);
      const ValidationWindows validation(corpus, context);
      validation.fill(0, validation.windows(), batch);
      for (int64_t row = 0; row < validation.windows(); ++row)
        expect_row(corpus.validation, row * context, context, batch, row);
    }
  }
}

TEST(ValidationWindows, EveryTargetOnceInOrder) {
  for (const int64_t size : {0, 1, 2, 3, 16, 17, 18, 33, 100}) {
    for (const int64_t context : {1, 2, 16, 40}) {
      const Corpus corpus = numbered(100, size);
      const ValidationWindows windows(corpus, context);
      ASSERT_EQ(windows.windows(), size < 2 ? 0 : (size - 1 + context - 1) / context);
      std::vector<int32_t> scored;
      BatchBuffer batch;
      for (int64_t first = 0; first < windows.windows() + 3; first += 3) {
        windows.fill(first, 3, batch);
        EXPECT_THAT(batch.sequences, ElementsAre(first, first + 1, first + 2));
        for (size_t i = 0; i < batch.targets.size(); ++i) {
          if (batch.targets[i] == kIgnoredTarget) continue;
          ASSERT_EQ(batch.targets[i], batch.inputs[i] + 1);
          scored.push_back(batch.targets[i]);
        }
      }
      std::vector<int32_t> wanted(std::max<int64_t>(0, size - 1));
      std::iota(wanted.begin(), wanted.end(), 1);
      ASSERT_EQ(scored, wanted) << size << " " << context;
    }
  }
}

TEST(ValidationWindows, BehindTheEndNothingIsScored) {
  const Corpus corpus = numbered(100, 20);
  const ValidationWindows windows(corpus, 8);
  ASSERT_EQ(windows.windows(), 3);
  BatchBuffer batch;
  windows.fill(2, 4, batch);
  EXPECT_THAT(std::vector<int32_t>(batch.targets.begin(), batch.targets.begin() + 8),
              ElementsAre(17, 18, 19, -1, -1, -1, -1, -1));
  EXPECT_THAT(std::vector<int32_t>(batch.inputs.begin(), batch.inputs.begin() + 8),
              ElementsAre(16, 17, 18, 0, 0, 0, 0, 0));
  EXPECT_THAT(std::vector<int32_t>(batch.targets.begin() + 8, batch.targets.end()),
              Each(kIgnoredTarget));
  EXPECT_THAT(std::vector<int32_t>(batch.inputs.begin() + 8, batch.inputs.end()), Each(0));
}

}  // namespace
}  // namespace strait
