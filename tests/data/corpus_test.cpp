#include "strait/data/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "strait/data/loader.h"
#include "strait/tokenizer/utf8.h"
#include "tests/data/expect_user_error.h"
#include "tests/data/sample_texts.h"
#include "tests/data/temporary_folder.h"
#include "tests/paths.h"

namespace strait {
namespace {

using ::testing::ElementsAre;
using testing::expect_user_error;

DataOptions options_for(const std::string& tokenizer, double share,
                        const std::string& separator = "") {
  DataOptions options;
  options.path = "text.txt";
  options.tokenizer = tokenizer;
  options.validation_share = share;
  options.document_separator = separator;
  return options;
}

std::string decoded(const Corpus& corpus, const TokenPart& part) {
  return corpus.tokenizer->decode(part.tokens.to_vector());
}

TEST(Corpus, TheLastPartIsForValidation) {
  const std::string text = testing::english(5000);
  for (const char* tokenizer : {"byte", "char", "bpe:400"}) {
    for (const double share : {0.0, 0.1, 0.25, 0.999}) {
      const Corpus corpus = make_corpus(text, options_for(tokenizer, share));
      const auto cut = static_cast<size_t>((1.0 - share) * static_cast<double>(text.size()));
      EXPECT_EQ(decoded(corpus, corpus.training), text.substr(0, cut)) << tokenizer << share;
      EXPECT_EQ(decoded(corpus, corpus.validation), text.substr(cut)) << tokenizer << share;
      EXPECT_EQ(corpus.training.text_bytes, static_cast<int64_t>(cut));
      EXPECT_TRUE(corpus.training.document_starts.empty());
    }
  }
}

TEST(Corpus, TinyShakespeareIsCutWhereNanoGptCutsIt) {
  const std::string path = test::in_source("../shared/data/tiny_shakespeare.txt");
  if (!std::filesystem::exists(path))
    return;  // an additional check on a text that is not in the repository
  DataOptions options = options_for("char", 0.1);
  options.path = path;
  const Corpus corpus = make_corpus(options);
  EXPECT_EQ(corpus.training.tokens.size(), 1003854);  // what nanoGPT's preparation prints
  EXPECT_EQ(corpus.validation.tokens.size(), 111540);
}

TEST(Corpus, TheCutIsBetweenCharacters) {
  const std::string text = "aé中\U0001F600";  // 1 + 2 + 3 + 4 bytes
  const size_t borders[] = {0, 1, 3, 6, 10};
  for (int bytes = 1; bytes <= 10; ++bytes) {
    const double share = std::max(0.0, 1.0 - (bytes + 0.5) / 10.0);
    const Corpus corpus = make_corpus(text, options_for("char", share));
    const auto wanted =
        *(std::upper_bound(std::begin(borders), std::end(borders), static_cast<size_t>(bytes)) - 1);
    EXPECT_EQ(corpus.training.text_bytes, static_cast<int64_t>(wanted)) << bytes;
    EXPECT_EQ(decoded(corpus, corpus.training) + decoded(corpus, corpus.validation), text);
  }
}

TEST(Corpus, BpeSeesTheTrainingPartOnlyAndCharTheWholeText) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "aabb ";
  const size_t half = text.size();
  for (int i = 0; i < 100; ++i) text += "zzyy ";
  const Corpus bpe = make_corpus(text, options_for("bpe:300", 0.5));
  EXPECT_EQ(bpe.training.text_bytes, static_cast<int64_t>(half));
  EXPECT_LT(bpe.training.tokens.size(), 150);
  EXPECT_GE(bpe.validation.tokens.size(), 400) << "merges were learnt from the validation part";
  EXPECT_EQ(make_corpus(text, options_for("char", 0.5)).tokenizer->vocabulary_size(), 5);
}

/// A token stands for them, so that merges of theirs would never be used.
TEST(Corpus, BpeLearnsNothingFromSeparators) {
  DataOptions options;
  options.tokenizer = "bpe:300";
  options.document_separator = "<|endoftext|>";
  std::string text;
  for (int at = 0; at < 200; ++at)
    text += "the strait is narrow and the ships are wide." + options.document_separator;
  const Corpus corpus = make_corpus(text, options);
  for (int32_t token = 0; token < corpus.tokenizer->vocabulary_size(); ++token) {
    if (token == *corpus.tokenizer->end_of_document()) continue;
    const std::string merged = corpus.tokenizer->decode(std::vector<int32_t>{token});
    for (const char* mark : {"<|", "|>", "endof", "text"})
      EXPECT_EQ(merged.find(mark), std::string::npos) << merged;
  }
}

TEST(Corpus, AnExistingTokenizerIsUsedAsItIs) {
  const std::string text = testing::english(500);
  const Corpus first = make_corpus(text, options_for("bpe:320", 0.2));
  const Corpus again = make_corpus(text, options_for("bpe:999", 0.2), first.tokenizer);
  EXPECT_EQ(again.tokenizer, first.tokenizer);
  EXPECT_EQ(again.training.tokens, first.training.tokens);
  const std::shared_ptr<const Tokenizer> narrow = make_tokenizer("char", "abc");
  expect_user_error([&] { make_corpus("abcd", options_for("char", 0), narrow); }, {"\"d\""},
                    "data.path");
}

TEST(Corpus, ThreadsDoNotChangeIt) {
  const std::string text = testing::english(40000);
  const Corpus one = make_corpus(text, options_for("bpe:400", 0.1), nullptr, 1);
  const Corpus three = make_corpus(text, options_for("bpe:400", 0.1), nullptr, 3);
  EXPECT_EQ(one.training.tokens, three.training.tokens);
  EXPECT_EQ(one.validation.tokens, three.validation.tokens);
}

TEST(Documents, WithAnEndTokenSeparatorsBecomeIt) {
  const Corpus corpus = make_corpus("##one##two####three", options_for("bpe:257", 0, "##"));
  const int32_t end = *corpus.tokenizer->end_of_document();
  EXPECT_EQ(decoded(corpus, corpus.training), "one<|endoftext|>two<|endoftext|>three<|endoftext|>");
  EXPECT_THAT(corpus.training.document_starts, ElementsAre(0, 4, 8));
  for (const int64_t start : {4, 8, 14}) EXPECT_EQ(corpus.training.tokens[start - 1], end);
  EXPECT_EQ(corpus.training.scored_tokens, 14 - 3);
  EXPECT_EQ(corpus.training.text_bytes, 11);  // a token stands for each separator
  EXPECT_EQ(corpus.training.scored_bytes, 11 - 3);
}

TEST(Documents, WithoutAnEndTokenTheSeparatorStays) {
  for (const char* tokenizer : {"byte", "char"}) {
    const std::string text = "##one##two####three##";
    const Corpus corpus = make_corpus(text, options_for(tokenizer, 0, "##"));
    EXPECT_EQ(decoded(corpus, corpus.training), text);
    EXPECT_THAT(corpus.training.document_starts, ElementsAre(0, 7, 14));
    EXPECT_EQ(corpus.training.scored_tokens, 21 - 3);
    EXPECT_EQ(corpus.training.scored_bytes, 21 - 3);
  }
}

TEST(Documents, OneDocumentAndOnlySeparators) {
  EXPECT_THAT(make_corpus("abc", options_for("byte", 0, "##")).training.document_starts,
              ElementsAre(0));
  EXPECT_THAT(make_corpus("####", options_for("byte", 0, "##")).training.document_starts,
              ElementsAre(0));
  EXPECT_TRUE(make_corpus("####", options_for("bpe:257", 0, "##")).training.tokens.empty());
}

TEST(Documents, TheCutNeverFallsIntoASeparator) {
  const std::string text = "aaaa<END>bbbb";  // the separator covers bytes 4 to 8
  for (int cut = 1; cut < 13; ++cut) {
    const Corpus corpus = make_corpus(text, options_for("byte", 1.0 - (cut + 0.5) / 13.0, "<END>"));
    const int64_t wanted = cut > 4 && cut < 9 ? 9 : cut;
    EXPECT_EQ(corpus.training.text_bytes, wanted) << cut;
  }
}

TEST(Documents, ScoredTokensAreTheTargetsOfTheValidationWindows) {
  for (const char* separator : {"", "\n\n"}) {
    for (const char* tokenizer : {"byte", "char", "bpe:300"}) {
      const Corpus corpus = make_corpus(testing::english(800) + testing::many_scripts(),
                                        options_for(tokenizer, 0.5, separator));
      const ValidationWindows windows(corpus, 13);
      BatchBuffer batch;
      windows.fill(0, windows.windows() + 2, batch);
      const auto scored = static_cast<int64_t>(batch.targets.size()) -
                          std::count(batch.targets.begin(), batch.targets.end(), kIgnoredTarget);
      EXPECT_EQ(scored, corpus.validation.scored_tokens) << tokenizer << separator;
      const ScoredText whole = windows.scored(windows.windows());
      EXPECT_EQ(whole.tokens, corpus.validation.scored_tokens);
      EXPECT_EQ(whole.bytes, corpus.validation.scored_bytes);
      // Of some windows: what their targets stand for.
      ScoredText some;
      windows.fill(0, windows.windows() - 1, batch);
      for (const int32_t target : batch.targets) {
        if (target == kIgnoredTarget) continue;
        ++some.tokens;
        if (target != corpus.tokenizer->end_of_document())
          some.bytes += static_cast<int64_t>(corpus.tokenizer->token_bytes(target).size());
      }
      const ScoredText first = windows.scored(windows.windows() - 1);
      EXPECT_EQ(first.tokens, some.tokens);
      EXPECT_EQ(first.bytes, some.bytes);
      EXPECT_LT(first.tokens, whole.tokens);
    }
  }
}

TEST(Corpus, BitsPerByteOfAUniformModel) {
  // A model that knows nothing spends 8 bits on each byte, however they are counted.
  const Corpus bytes = make_corpus(testing::english(100), options_for("byte", 0.5));
  const ValidationWindows windows(bytes, 16);
  EXPECT_DOUBLE_EQ(bits_per_byte(std::log(256.0), windows.scored(windows.windows())), 8.0);
  // 4 bits per token, 4 bytes per token.
  EXPECT_DOUBLE_EQ(bits_per_byte(std::log(16.0), {.tokens = 30, .bytes = 120}), 1.0);
  EXPECT_TRUE(std::isnan(bits_per_byte(1.0, {})));
}

/// Letters of one byte, then characters of three: the first windows stand for fewer bytes.
TEST(Corpus, BitsPerByteAreThoseOfTheWindowsThatAreEvaluated) {
  std::string text(400, 'a');
  for (int i = 0; i < 200; ++i) text += i < 100 ? "b" : "\u4e2d";
  const Corpus corpus = make_corpus(text, options_for("char", 0.5));
  const ValidationWindows windows(corpus, 10);
  const ScoredText ascii = windows.scored(3);
  EXPECT_EQ(ascii.tokens, 30);
  EXPECT_EQ(ascii.bytes, 30);
  const ScoredText all = windows.scored(windows.windows());
  EXPECT_GT(all.bytes, 2 * all.tokens - 100);
}

TEST(Corpus, ReadsTheFileThatTheOptionsName) {
  const testing::TemporaryFolder folder;
  DataOptions options = options_for("byte", 0.5);
  options.path = folder.write("t", "caf\xe9 noir");
  options.encoding = "latin-1";
  const Corpus corpus = make_corpus(options);
  EXPECT_EQ(corpus.source, options.path);
  EXPECT_EQ(decoded(corpus, corpus.training) + decoded(corpus, corpus.validation), "café noir");
  options.path += "x";
  expect_user_error([&] { make_corpus(options); }, {"does not exist"}, "data.path");
}

TEST(Corpus, AShareOutOfRangeIsRefused) {
  for (const double share : {-0.1, 1.0, 2.0, std::nan("")})
    expect_user_error([&] { make_corpus("text", options_for("byte", share)); }, {"not in [0, 1)"},
                      "data.validation_share");
}

}  // namespace
}  // namespace strait
