#include "strait/tokenizer/split_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/tokenizer/utf8.h"
#include "tests/data/sample_texts.h"
#include "tests/pace.h"
#include "tests/sanitized.h"
#include "tests/tokenizer/reference_bpe.h"

namespace strait {
namespace {

using ::testing::ElementsAre;
using testing::split;

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

// The expected pieces were derived by hand from GPT-2's pattern, alternative by alternative.
TEST(SplitPattern, WordsNumbersSignsAndContractions) {
  EXPECT_THAT(split("Hello world, it's 2024!!"),
              ElementsAre("Hello", " world", ",", " it", "'s", " 2024", "!!"));
  EXPECT_THAT(split("we'll they've I'm you'd don't we're"),
              ElementsAre("we", "'ll", " they", "'ve", " I", "'m", " you", "'d", " don", "'t",
                          " we", "'re"));
  EXPECT_THAT(split("IT'S x'y"), ElementsAre("IT", "'", "S", " x", "'", "y"));
  EXPECT_THAT(split("a1b_2"), ElementsAre("a", "1", "b", "_", "2"));
}

TEST(SplitPattern, TheLastOfSeveralSpacesGoesWithTheWord) {
  EXPECT_THAT(split("a   b"), ElementsAre("a", "  ", " b"));
  EXPECT_THAT(split("a \n b"), ElementsAre("a", " \n", " b"));
  EXPECT_THAT(split("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(split("a  "), ElementsAre("a", "  "));
  EXPECT_THAT(split(" \t\n"), ElementsAre(" \t\n"));
  EXPECT_THAT(split("a\u00a0b"), ElementsAre("a", "\u00a0", "b"));
  EXPECT_THAT(split("a\u0085\u2028b"), ElementsAre("a", "\u0085", "\u2028", "b"));
}

TEST(SplitPattern, UnicodeClasses) {
  EXPECT_THAT(split("naïve café"), ElementsAre("naïve", " café"));
  EXPECT_THAT(split("中文。字"), ElementsAre("中文", "。", "字"));
  EXPECT_THAT(split("x²٣Ⅻ"), ElementsAre("x", "²٣Ⅻ"));
  EXPECT_THAT(split("e\u0301a"),
              ElementsAre("e", "\u0301", "a"));  // a mark is neither letter nor space
  EXPECT_THAT(split("a \u180eb"),
              ElementsAre("a", " \u180e", "b"));  // no white space since Unicode 6.3
}

std::vector<std::string> llama3(std::string_view text) { return split(text, SplitKind::kLlama3); }

// As above, from Llama 3's pattern.
TEST(SplitPattern, Llama3) {
  EXPECT_THAT(llama3("Hello world, it's 2024!!"),
              ElementsAre("Hello", " world", ",", " it", "'s", " ", "202", "4", "!!"));
  EXPECT_THAT(llama3("IT'S we'LL a'\u017f 'sx"),
              ElementsAre("IT", "'S", " we", "'LL", " a", "'\u017f", " '", "sx"));
  EXPECT_THAT(llama3("(foo)\tbar[ x]"), ElementsAre("(foo", ")", "\tbar", "[", " x", "]"));
  EXPECT_THAT(llama3("a;\n\n  b  c"), ElementsAre("a", ";\n\n", " ", " b", " ", " c"));
  EXPECT_THAT(llama3(" \n \r\n  x"), ElementsAre(" \n \r\n", " ", " x"));
  EXPECT_THAT(llama3("a \n"), ElementsAre("a", " \n"));
  EXPECT_THAT(llama3("a  "), ElementsAre("a", "  "));
  EXPECT_THAT(llama3("\u00a0a\u2003\u2003 1"), ElementsAre("\u00a0a", "\u2003\u2003", " ", "1"));
  EXPECT_THAT(llama3("\u4e2d\u6587\u3002 \u0663\u0664\u0665\u0666"),
              ElementsAre("\u4e2d\u6587", "\u3002", " ", "\u0663\u0664\u0665", "\u0666"));
  EXPECT_THAT(llama3("caf\xe9 noir"), ElementsAre("caf", "\xe9", " noir"));
}

// As Llama 3's, but for numbers.
TEST(SplitPattern, Qwen2) {
  const auto qwen2 = [](std::string_view text) { return split(text, SplitKind::kQwen2); };
  EXPECT_THAT(qwen2("Hello, it'S 2024!!\n x"),
              ElementsAre("Hello", ",", " it", "'S", " ", "2", "0", "2", "4", "!!\n", " x"));
  EXPECT_THAT(qwen2("\u0663\u0664\u00bd"), ElementsAre("\u0663", "\u0664", "\u00bd"));
}

// GPT-2's between the digits, where white space before a digit ends as that before the end does.
TEST(SplitPattern, Digits) {
  const auto digits = [](std::string_view text) { return split(text, SplitKind::kGpt2Digits); };
  EXPECT_THAT(digits("Hello it's 2024!!"),
              ElementsAre("Hello", " it", "'s", " ", "2", "0", "2", "4", "!!"));
  EXPECT_THAT(digits("a  1  b   c \n2"),
              ElementsAre("a", "  ", "1", " ", " b", "  ", " c", " \n", "2"));
  EXPECT_THAT(digits("x²٣Ⅻ 9"), ElementsAre("x", "²", "٣", "Ⅻ", " ", "9"));
}

TEST(SplitPattern, BytesThatAreNotUtf8StandAlone) {
  EXPECT_THAT(split("caf\xe9 noir"), ElementsAre("caf", "\xe9", " noir"));
  EXPECT_THAT(split("\xff\xfe"), ElementsAre("\xff\xfe"));
  EXPECT_THAT(split("a  \x80z"), ElementsAre("a", "  ", "\x80", "z"));
  EXPECT_EQ(joined(split(testing::broken_utf8())), testing::broken_utf8());
}

TEST(SplitPattern, PiecesJoinedAreTheTextForAnyBytes) {
  EXPECT_TRUE(split("").empty());
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::string text = testing::random_bytes(400, seed) + testing::many_scripts();
    const auto pieces = split(text);
    ASSERT_EQ(joined(pieces), text) << seed;
    for (const auto& piece : pieces) ASSERT_FALSE(piece.empty());
  }
}

TEST(SplitPattern, LongRunsOfLlama3NeedNoStack) {
  for (const std::string& unit : {std::string("a"), std::string(" "), std::string("\n"),
                                  std::string("é"), std::string("。")}) {
    std::string run;
    for (int i = 0; i < 300000; ++i) run += unit;
    EXPECT_THAT(llama3(run), ElementsAre(run)) << unit;
    EXPECT_EQ(joined(llama3(run + "x " + run + "!")), run + "x " + run + "!") << unit;
  }
}

TEST(SplitPattern, LongRunsNeedNoStack) {
  for (const std::string& unit : {std::string("a"), std::string(" "), std::string("7"),
                                  std::string("é"), std::string("\u2003"), std::string("。")}) {
    std::string run;
    for (int i = 0; i < 300000; ++i) run += unit;
    EXPECT_THAT(split(run), ElementsAre(run)) << unit;
    EXPECT_EQ(joined(split(run + "x " + run + "!")), run + "x " + run + "!") << unit;
  }
}

// Every tokenizer has one; compiling it anew takes 50 us and more.
TEST(SplitPattern, IsCompiledOnce) {
  EXPECT_THAT(split("a b"), ElementsAre("a", " b"));
  const double began = test::thread_processor_seconds();
  for (int i = 0; i < 10'000; ++i) const SplitPattern pattern(SplitKind::kLlama3);
  EXPECT_LT(test::thread_processor_seconds() - began, 0.1 * test::kSlowdown);
}

class SafeOffsets : public ::testing::TestWithParam<SplitKind> {};

TEST_P(SafeOffsets, AreBordersOfTheWholeSplit) {
  const auto split = [](std::string_view text) { return testing::split(text, GetParam()); };
  const std::string text = testing::english(100) + "a    b \n   c. (   d) " +
                           testing::broken_utf8() + testing::many_scripts();
  const auto whole = split(text);
  int safe = 0;
  for (size_t offset = 0; offset < text.size(); ++offset) {
    const size_t cut = safe_split_offset(text, offset);
    ASSERT_GE(cut, offset);
    auto pieces = split(std::string_view(text).substr(0, cut));
    const auto rest = split(std::string_view(text).substr(cut));
    pieces.insert(pieces.end(), rest.begin(), rest.end());
    ASSERT_EQ(pieces, whole) << offset;
    if (cut < text.size()) ++safe;
  }
  EXPECT_GT(safe, 100);
}
INSTANTIATE_TEST_SUITE_P(Kinds, SafeOffsets,
                         ::testing::Values(SplitKind::kGpt2, SplitKind::kLlama3, SplitKind::kQwen2,
                                           SplitKind::kGpt2Digits));

}  // namespace
}  // namespace strait
