// Tokenizers beyond byte-level BPE: tokens that Hugging Face's library made, the models against
// plain searches, what is refused, damaged files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/base/random.h"
#include "strait/tokenizer/subword/characters.h"
#include "strait/tokenizer/subword/normalizer.h"
#include "strait/tokenizer/subword/pre_tokenizer.h"
#include "strait/tokenizer/tokenizer.h"
#include "tests/data/expect_user_error.h"
#include "tests/paths.h"

namespace strait {
namespace {

using ::testing::ElementsAre;
using testing::expect_user_error;

using Tokens = std::vector<int32_t>;

std::unique_ptr<Tokenizer> parsed(const Json& json) {
  return parse_tokenizer(json.dump(), "tokenizer.json");
}

/// tests/fixtures/subword-tokenizers.json, which bench/peers/subword_reference.py made.
const Json& fixture() {
  static const Json read =
      Json::parse(read_file(test::in_source("tests/fixtures/subword-tokenizers.json")), "fixture");
  return read;
}

const Json& fixture_json(const char* name) {
  return fixture().at("tokenizers").at(name).at("json");
}

TEST(SubwordTokens, AreHuggingFaces) {
  const std::string text = fixture().at("text").as_string();
  for (const auto& [name, entry] : fixture().at("tokenizers").as_object()) {
    Tokens theirs;
    for (const Json& token : entry.at("tokens").as_array())
      theirs.push_back(static_cast<int32_t>(token.as_integer()));
    const auto tokenizer = parsed(entry.at("json"));
    EXPECT_EQ(tokenizer->encode(text), theirs) << name;
    EXPECT_FALSE(tokenizer->is_lossless()) << name;
  }
  EXPECT_EQ(fixture().at("tokenizers").size(), 10u);
}

TEST(SubwordTokens, SavedTokenizersEncodeAlike) {
  const std::string text = fixture().at("text").as_string();
  for (const auto& [name, entry] : fixture().at("tokenizers").as_object()) {
    const auto tokenizer = parsed(entry.at("json"));
    const auto again = parse_tokenizer(tokenizer->serialize(), "again");
    EXPECT_EQ(again->encode(text), tokenizer->encode(text)) << name;
    EXPECT_EQ(again->kind(), tokenizer->kind()) << name;
  }
}

TEST(SubwordTokens, ComeBackAsTextWithASpaceBeforeIt) {
  const std::string text = "over the links, narrow\nand 20";
  for (const char* name : {"unigram-bytes", "bpe-llama2", "bpe-mistral"}) {
    const auto tokenizer = parsed(fixture_json(name));
    const std::string back = tokenizer->decode(tokenizer->encode(text));
    EXPECT_EQ(back, " " + text) << name;
  }
  const auto words = parsed(fixture_json("wordpiece-cased"));
  EXPECT_EQ(words->decode(words->encode("the links")), " the links");
}

TEST(SubwordTokens, BytesStandForWhatTheVocabularyLacks) {
  const auto tokenizer = parsed(fixture_json("bpe-gemma"));
  const std::string text = "\U0001f9ff\u1234";
  const Tokens tokens = tokenizer->encode(text);
  EXPECT_EQ(tokens.size(), text.size());
  EXPECT_EQ(tokenizer->decode(tokens), text);
}

TEST(SubwordTokens, SpecialTokensAreNeverMadeFromText) {
  for (const auto& [name, entry] : fixture().at("tokenizers").as_object()) {
    const auto tokenizer = parsed(entry.at("json"));
    const auto end = tokenizer->end_of_document();
    if (!end) continue;
    const std::string text(tokenizer->token_bytes(*end));
    EXPECT_THAT(tokenizer->encode("a " + text + text), ::testing::Not(::testing::Contains(*end)))
        << name;
  }
}

TEST(SubwordTokens, EmptyTextHasNone) {
  for (const auto& [name, entry] : fixture().at("tokenizers").as_object())
    EXPECT_TRUE(parsed(entry.at("json"))->encode("").empty()) << name;
}

TEST(SubwordTokens, TextThatIsNotUtf8IsRefusedWithItsPlace) {
  expect_user_error([] { parsed(fixture_json("unigram-t5"))->encode("ab\xff"); },
                    {"byte 2", "0xff", "data.encoding"});
}

/// A Unigram model of short pieces over two letters with random scores.
Json random_unigram(uint64_t seed) {
  const RandomStream stream(seed, "tests.unigram");
  Json vocabulary = Json::array();
  uint64_t next = 0;
  for (const char* piece : {"a", "b", "ab", "ba", "aa", "bb", "aba", "bab", "abba", "aabb"})
    if (next < 2 || stream.below(100 + next, 3) > 0)
      vocabulary.push_back(
          Json::Array{piece, -0.001 * static_cast<double>(stream.below(next++, 9000))});
  const Json model = Json::object({{"type", "Unigram"}, {"vocab", vocabulary}});
  return Json::object({{"model", model}});
}

/// The largest sum of scores over all ways to cut `text`.
double best_score(const Json::Array& vocabulary, const std::string& text) {
  if (text.empty()) return 0;
  double best = -std::numeric_limits<double>::infinity();
  for (const Json& entry : vocabulary) {
    const std::string& piece = entry.as_array()[0].as_string();
    if (text.starts_with(piece))
      best = std::max(best, entry.as_array()[1].as_number() +
                                best_score(vocabulary, text.substr(piece.size())));
  }
  return best;
}

TEST(Unigram, FindsTheBestOfAllWays) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Json json = random_unigram(seed);
    const Json::Array& vocabulary = json.at("model").at("vocab").as_array();
    const auto tokenizer = parsed(json);
    std::string text;
    for (uint64_t i = 0; i < 12; ++i)
      text += RandomStream(seed, "tests.text").below(i, 2) == 0 ? 'a' : 'b';
    const Tokens tokens = tokenizer->encode(text);
    double score = 0;
    for (const int32_t token : tokens)
      score += vocabulary[static_cast<size_t>(token)].as_array()[1].as_number();
    EXPECT_EQ(tokenizer->decode(tokens), text);
    EXPECT_NEAR(score, best_score(vocabulary, text), 1e-12) << text;
  }
}

Json small_wordpiece() {
  Json vocabulary = Json::object();
  int64_t number = 0;
  for (const char* token : {"[UNK]", "un", "##aff", "##able", "unaff", ",", "a", "##a"})
    vocabulary[token] = number++;
  const Json model = Json::object({{"type", "WordPiece"},
                                   {"unk_token", "[UNK]"},
                                   {"max_input_chars_per_word", 10},
                                   {"vocab", vocabulary}});
  return Json::object(
      {{"pre_tokenizer", Json::object({{"type", "BertPreTokenizer"}})}, {"model", model}});
}

TEST(WordPiece, TakesTheLongestTokenAgainAndAgain) {
  const auto tokenizer = parsed(small_wordpiece());
  EXPECT_THAT(tokenizer->encode("unaffable,un a"), ElementsAre(4, 3, 5, 1, 6));
  EXPECT_THAT(tokenizer->encode("unx un"), ElementsAre(0, 1));    // one unknown for the word
  EXPECT_THAT(tokenizer->encode("aaaaaaaaaaa"), ElementsAre(0));  // eleven characters
  EXPECT_EQ(tokenizer->encode("aaaaaaaaaa").size(), 10u);
}

TEST(Subword, EachUnsupportedPartIsNamed) {
  const auto refuse = [](const char* name, const std::function<void(Json&)>& change,
                         std::initializer_list<std::string> parts) {
    Json json = fixture_json(name);
    change(json);
    expect_user_error([&] { parsed(json); }, parts);
  };
  const auto typed = [](const char* type) { return Json::object({{"type", type}}); };
  refuse("unigram-t5", [&](Json& j) { j["normalizer"] = typed("Nmt"); }, {"normalizer \"Nmt\""});
  refuse("unigram-t5",
         [&](Json& j) {
           j["normalizer"] =
               Json::object({{"type", "Sequence"},
                             {"normalizers", Json::Array{typed("NFC"), typed("ByteLevel")}}});
         },
         {"normalizer.normalizers[1] \"ByteLevel\"", "NFKC"});
  refuse("unigram-t5", [&](Json& j) { j["pre_tokenizer"] = typed("Whitespace"); },
         {"pre_tokenizer \"Whitespace\"", "Metaspace"});
  refuse("unigram-t5", [&](Json& j) { j["decoder"] = typed("CTC"); }, {"decoder \"CTC\""});
  refuse("unigram-t5", [&](Json& j) { j["model"]["unk_id"] = 100000; }, {"unk_id 100000"});
  refuse("wordpiece-cased", [&](Json& j) { j["model"]["unk_token"] = "[X]"; },
         {"unk_token \"[X]\""});
  refuse("bpe-llama2", [&](Json& j) { j["model"]["dropout"] = 0.1; }, {"dropout"});
  refuse("bpe-llama2", [&](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; },
         {"model.end_of_word_suffix", "</w>"});
  refuse("bpe-gemma",
         [&](Json& j) {
           Json added = j.at("added_tokens");
           Json last = added.as_array().back();
           last["lstrip"] = true;
           Json::Array all = added.as_array();
           all.back() = last;
           j["added_tokens"] = all;
         },
         {"added_tokens", "lstrip"});
  refuse("bpe-gemma",
         [&](Json& j) {
           j["pre_tokenizer"]["pattern"] = Json::object({{"Regex", "a+"}});
         },
         {"pre_tokenizer.pattern.Regex \"a+\""});
  refuse("unigram-t5",
         [&](Json& j) {
           j["normalizer"] =
               Json::object({{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA!"}});
         },
         {"precompiled_charsmap", "base64"});
}

TEST(Subword, TextWithoutATokenIsRefusedByName) {
  Json json = random_unigram(1);
  expect_user_error([&] { parsed(json)->encode("abc"); }, {"\"c\"", "U+0063"});
}

std::string normalized(const Json& part, const std::string& text) {
  return subword::Normalizer(part).apply(text);
}

TEST(Normalizer, BertCleansAndLowersAndSeparatesChinese) {
  const Json bert = Json::object({{"type", "BertNormalizer"}});
  EXPECT_EQ(normalized(bert, "\u00c9a\tB\u0007\u4e2d\ufffd"), "ea b \u4e2d ");
  EXPECT_EQ(normalized(bert, "\u0130"), "i");  // the dot above is a mark
}

TEST(Normalizer, StripsEitherEnd) {
  const auto strip = [](bool left, bool right) {
    return Json::object({{"type", "Strip"}, {"strip_left", left}, {"strip_right", right}});
  };
  EXPECT_EQ(normalized(strip(true, true), " \u3000a b\n"), "a b");
  EXPECT_EQ(normalized(strip(true, false), " a "), "a ");
  EXPECT_EQ(normalized(strip(false, true), " a "), " a");
  EXPECT_EQ(normalized(strip(true, true), "  "), "");
}

TEST(Normalizer, ReplacesRunsOfSpaces) {
  const Json runs = Json::object(
      {{"type", "Replace"}, {"pattern", Json::object({{"Regex", " {2,}"}})}, {"content", "_"}});
  EXPECT_EQ(normalized(runs, "  a b   c "), "_a b_c ");
}

/// `count` of `part`, one after the other.
Json repeated(const char* list, const Json& part, int count) {
  return Json::object({{"type", "Sequence"}, {list, Json(Json::Array(count, part))}});
}

Json replacing(const char* from, const std::string& to) {
  return Json::object(
      {{"type", "Replace"}, {"pattern", Json::object({{"String", from}})}, {"content", to}});
}

TEST(Normalizer, RefusesStepsThatMakeMuchOfLittle) {
  // 21 doublings of one letter are 2 MiB, 40 would be a terabyte.
  EXPECT_EQ(normalized(repeated("normalizers", replacing("a", "aa"), 4), "a"),
            std::string(16, 'a'));
  expect_user_error([&] { normalized(repeated("normalizers", replacing("a", "aa"), 21), "a"); },
                    {"the tokenizer", "1 bytes of text", "16 times"});
  const std::string long_text(1 << 20, 'b');
  expect_user_error([&] { normalized(replacing("a", long_text), "aaa"); }, {"3 bytes of text"});
  const Json runs = Json::object({{"type", "Replace"},
                                  {"pattern", Json::object({{"Regex", " {2,}"}})},
                                  {"content", long_text}});
  expect_user_error([&] { normalized(runs, "a  a"); }, {"4 bytes of text"});
  // What lengthens most of what Unicode defines.
  EXPECT_EQ(normalized(Json::object({{"type", "NFKD"}}), "\uFDFA").size(), 33u);
}

std::vector<std::string> pieces_of(const Json& part, const std::string& text) {
  std::vector<std::string> out;
  for (const subword::Piece& piece : subword::PreTokenizer(part).apply(text, true))
    out.push_back(piece.text);
  return out;
}

TEST(PreTokenizer, MetaspaceMarksWords) {
  const auto metaspace = [](const char* scheme) {
    return Json::object({{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", scheme}});
  };
  EXPECT_THAT(pieces_of(metaspace("always"), "a  b"), ElementsAre("_a", "_", "_b"));
  EXPECT_THAT(pieces_of(metaspace("never"), "a b"), ElementsAre("a", "_b"));
  EXPECT_THAT(pieces_of(metaspace("first"), " a b"), ElementsAre("_a", "_b"));
  EXPECT_TRUE(pieces_of(metaspace("always"), "").empty());
}

TEST(PreTokenizer, RefusesStepsThatMakeMuchOfLittle) {
  const Json metaspace =
      Json::object({{"type", "Metaspace"}, {"replacement", "  "}, {"split", false}});
  expect_user_error([&] { pieces_of(repeated("pretokenizers", metaspace, 21), " "); },
                    {"1 bytes of text", "16 times"});
}

TEST(Decoder, RefusesStepsThatMakeMuchOfLittle) {
  Json json = fixture_json("unigram-t5");
  json["decoder"] = repeated("decoders", replacing("a", "aa"), 21);
  expect_user_error([&] { parsed(json); }, {"tokenizer.json", "16 times"});
}

TEST(PreTokenizer, FirstMarksTheBeginningOfTheTextAlone) {
  const Json split = Json::object(
      {{"type", "Split"}, {"pattern", Json::object({{"String", ","}})}, {"behavior", "Isolated"}});
  const Json first =
      Json::object({{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}});
  const Json both =
      Json::object({{"type", "Sequence"}, {"pretokenizers", Json::Array{split, first}}});
  EXPECT_THAT(pieces_of(both, "a,b"), ElementsAre("_a", ",", "b"));
}

TEST(PreTokenizer, BordersGoWhereTheFileSays) {
  const auto split = [](const char* behavior) {
    return Json::object(
        {{"type", "Split"}, {"pattern", Json::object({{"String", "-"}})}, {"behavior", behavior}});
  };
  EXPECT_THAT(pieces_of(split("Isolated"), "a--b"), ElementsAre("a", "-", "-", "b"));
  EXPECT_THAT(pieces_of(split("Removed"), "a--b-"), ElementsAre("a", "b"));
  EXPECT_THAT(pieces_of(split("MergedWithPrevious"), "a--b"), ElementsAre("a-", "-", "b"));
  EXPECT_THAT(pieces_of(split("MergedWithNext"), "a--b"), ElementsAre("a", "-", "-b"));
}

TEST(PreTokenizer, DigitsStandAlone) {
  const auto digits = [](bool single) {
    return Json::object({{"type", "Digits"}, {"individual_digits", single}});
  };
  EXPECT_THAT(pieces_of(digits(true), "a12b"), ElementsAre("a", "1", "2", "b"));
  EXPECT_THAT(pieces_of(digits(false), "a12b"), ElementsAre("a", "12", "b"));
}

}  // namespace
}  // namespace strait
