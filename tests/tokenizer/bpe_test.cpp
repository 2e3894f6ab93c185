// The fast trainer and encoder against the plain ones of reference_bpe.h, and tokenizer.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "strait/base/json.h"
#include "strait/tokenizer/bpe_json.h"
#include "strait/tokenizer/bpe_tokenizer.h"
#include "strait/tokenizer/bpe_trainer.h"
#include "tests/data/expect_user_error.h"
#include "tests/data/sample_texts.h"
#include "tests/tokenizer/reference_bpe.h"

namespace strait {
namespace {

using ::testing::ElementsAre;
using testing::expect_user_error;

BpeModel train(std::string_view text, int64_t size, int64_t minimum_count = 2) {
  BpeTrainOptions options;
  options.vocabulary_size = size;
  options.minimum_count = minimum_count;
  return train_bpe(text, options);
}

void expect_equal(const BpeModel& found, const BpeModel& wanted, const std::string& what) {
  ASSERT_EQ(found.tokens, wanted.tokens) << what;
  ASSERT_TRUE(found.merges == wanted.merges) << what;
  ASSERT_TRUE(found == wanted) << what;
}

TEST(BpeTrainer, EqualsThePlainTrainerOnEnglish) {
  const std::string text = testing::english(700);
  for (const int64_t size : {257, 258, 300, 420})
    expect_equal(train(text, size), testing::reference_train(text, size), std::to_string(size));
}

TEST(BpeTrainer, EqualsThePlainTrainerWherePairsOverlap) {
  for (int kinds = 1; kinds <= 4; ++kinds) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      const std::string text = testing::few_letters(20 + 15 * seed, kinds, seed);
      const std::string what = std::to_string(kinds) + " letters, seed " + std::to_string(seed);
      expect_equal(train(text, 320), testing::reference_train(text, 320), what);
      const BpeModel all = train(text, 400, 1);
      const std::set<std::string> distinct(all.tokens.begin(), all.tokens.end());
      ASSERT_EQ(distinct.size(), all.tokens.size()) << "two tokens with the same bytes, " << what;
      expect_equal(all, testing::reference_train(text, 400, 1), what + ", all pairs");
    }
  }
}

TEST(BpeTrainer, EqualsThePlainTrainerOnAnyBytes) {
  const std::string text =
      testing::broken_utf8() + testing::many_scripts() + testing::random_bytes(1500, 5);
  expect_equal(train(text + text, 330), testing::reference_train(text + text, 330), "bytes");
}

TEST(BpeTrainer, LearnsTheMergesOfAWorkedExample) {
  // Pieces: low x5, " low" x2 ... counted by hand: "lo" 7, then "low" 7, then " low" 2 before
  // others with 2.
  const BpeModel model = train("low\nlow\nlow\nlow\nlow low low", 260);
  ASSERT_EQ(model.merges.size(), 3u);
  EXPECT_EQ(model.tokens[256], "lo");
  EXPECT_EQ(model.tokens[257], "low");
  EXPECT_EQ(model.tokens[258], " low");
  EXPECT_EQ(model.tokens[259], "<|endoftext|>");
  EXPECT_EQ(model.end_of_document, 259);
}

TEST(BpeTrainer, ASmallTextGivesASmallVocabulary) {
  EXPECT_EQ(train("", 1000).tokens.size(), 257u);
  EXPECT_EQ(train("abc", 1000).tokens.size(), 257u);
  EXPECT_EQ(train("abcabc", 1000, 1).tokens.size(), 260u);  // ab, abc, abcabc
}

TEST(BpeTrainer, ALongTextIsRepresentedByItsSlices) {
  const std::string text = testing::english(20000);
  BpeTrainOptions options;
  options.vocabulary_size = 350;
  options.sample_bytes = 6400;
  std::string slices;
  for (size_t i = 0; i < 64; ++i) slices += text.substr(text.size() / 64 * i, 100);
  expect_equal(train_bpe(text, options), train(slices, 350), "slices");
  EXPECT_FALSE(train_bpe(text, options) == train(text, 350));
}

TEST(BpeTrainer, RefusesASizeThatCannotBe) {
  expect_user_error([] { train("text", 256); }, {"257", "not 256"});
  expect_user_error([] { train("text", 1000001); }, {"not 1000001"});
}

TEST(BpeTokenizer, EncodesAsThePlainEncoderDoes) {
  const std::string english = testing::english(500);
  const BpeModel model = train(english + testing::few_letters(400, 2, 1), 380);
  const BpeTokenizer tokenizer(model);
  const std::string run(200, 'a');
  const std::vector<std::string> texts = {"",
                                          "a",
                                          " ",
                                          english,
                                          testing::english(300, 9),
                                          testing::many_scripts(),
                                          testing::broken_utf8(),
                                          testing::random_bytes(600, 8),
                                          testing::few_letters(500, 2, 7),
                                          run,
                                          run + "b" + run};
  for (const std::string& text : texts)
    ASSERT_EQ(tokenizer.encode(text), testing::reference_encode(text, model)) << text.substr(0, 60);
  EXPECT_LT(tokenizer.encode(english).size(), english.size() / 2);
}

TEST(BpeTokenizer, PiecesAroundTheLengthWhereTheMethodChangesAreEncodedAlike) {
  const BpeModel model = train(testing::few_letters(3000, 2, 4), 420, 1);
  const BpeTokenizer tokenizer(model);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (const size_t size : {1, 2, 3, 62, 63, 64, 65, 66, 130}) {
      std::string text = testing::few_letters(size, 2, seed);
      std::replace(text.begin(), text.end(), ' ', 'a');
      ASSERT_EQ(tokenizer.encode(text), testing::reference_encode(text, model)) << text;
    }
  }
}

TEST(BpeTokenizer, AnyBytesComeBack) {
  const BpeTokenizer tokenizer(train(testing::english(500), 350));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::string text = testing::random_bytes(seed * 5, seed) + testing::broken_utf8();
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << seed;
  }
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(every)), every);
}

TEST(BpeTokenizer, ThreadsDoNotChangeTheTokens) {
  const std::string text =
      testing::english(60000) + testing::broken_utf8() + testing::english(60000, 2);
  const BpeTokenizer tokenizer(train(text, 400));
  const auto serial = tokenizer.encode(text, 1);
  for (const int threads : {2, 3, 4, 8, 64})
    EXPECT_EQ(tokenizer.encode(text, threads), serial) << threads;
  const std::string solid(300000, '.');  // no place to cut
  EXPECT_EQ(tokenizer.encode(solid, 4), tokenizer.encode(solid, 1));
}

TEST(BpeTokenizer, TextThatSpellsTheSpecialTokenDoesNotBecomeIt) {
  const std::string text = "a<|endoftext|>b";
  std::string more;
  for (int i = 0; i < 50; ++i) more += text;
  const BpeTokenizer tokenizer(train(more, 300));
  const auto tokens = tokenizer.encode(text);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), *tokenizer.end_of_document()), 0);
  EXPECT_EQ(tokenizer.decode(tokens), text);
  EXPECT_EQ(tokenizer.token_bytes(*tokenizer.end_of_document()), "<|endoftext|>");
}

TEST(BpeTokenizer, AModelThatBreaksItsInvariantsIsRefused) {
  const BpeModel good = train(testing::english(100), 300);
  const auto refuse = [&](auto change, std::initializer_list<std::string> parts) {
    BpeModel model = good;
    change(model);
    expect_user_error([&] { const BpeTokenizer tokenizer(model); }, parts);
  };
  refuse([](BpeModel& m) { m.tokens['@' - '!'] = "@@"; }, {"byte 0x40"});
  refuse([](BpeModel& m) { m.merges[4].left = 300; }, {"merge 4", "out of range"});
  refuse([](BpeModel& m) { m.merges[4].result = -1; }, {"merge 4", "out of range"});
  refuse([](BpeModel& m) { m.merges[4].result = 0; }, {"merge 4", "joined"});
  refuse([](BpeModel& m) { m.merges[4] = m.merges[2]; }, {"merge 4", "twice"});
  refuse([](BpeModel& m) { m.merges[4].right = 299; }, {"merge 4", "special"});
  refuse([](BpeModel& m) { m.special_tokens = {300}; }, {"special token 300"});
}

/// A tokenizer.json in the shape in which GPT-2's is published: the visible alphabet, three merges.
Json gpt2_json(bool pairs) {
  Json vocabulary = Json::object();
  for (size_t i = 0; i < 256; ++i)
    vocabulary[bytes_to_visible(std::string(1, static_cast<char>(bytes_in_token_order()[i])))] =
        int64_t(i);
  vocabulary["\u0120t"] = 256;  // " t"
  vocabulary["he"] = 257;
  vocabulary["\u0120the"] = 258;
  vocabulary["<|endoftext|>"] = 259;
  const auto merge = [&](const char* a, const char* b) {
    return pairs ? Json(Json::Array{a, b}) : Json(std::string(a) + " " + b);
  };
  Json json = Json::object();
  json["version"] = "1.0";
  json["truncation"] = nullptr;
  json["padding"] = nullptr;
  json["added_tokens"] = Json::Array{Json::object(
      {{"id", 259}, {"special", true}, {"content", "<|endoftext|>"}, {"normalized", true}})};
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] =
      Json::object({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}});
  json["post_processor"] = Json::object({{"type", "ByteLevel"}, {"add_prefix_space", true}});
  json["decoder"] = Json::object({{"type", "ByteLevel"}});
  json["model"] = Json::object(
      {{"dropout", nullptr},
       {"unk_token", nullptr},
       {"continuing_subword_prefix", ""},
       {"end_of_word_suffix", ""},
       {"fuse_unk", false},
       {"vocab", vocabulary},
       {"merges", Json::Array{merge("\u0120", "t"), merge("h", "e"), merge("\u0120t", "he")}}});
  return json;
}

TEST(BpeJson, ReadsAPublishedFileWithMergesOfBothForms) {
  for (const bool pairs : {false, true}) {
    const auto tokenizer = parse_tokenizer(gpt2_json(pairs).dump(), "gpt2");
    EXPECT_EQ(tokenizer->vocabulary_size(), 260);
    EXPECT_EQ(tokenizer->end_of_document(), 259);
    // GPT-2's own numbers: "!" is 0, "a" is 64, "." is 13, newline is 198, space is 220.
    EXPECT_THAT(tokenizer->encode("a the.\n he !"),
                ElementsAre(64, 258, 13, 198, 220, 257, 220, 0));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(testing::many_scripts())),
              testing::many_scripts());
  }
}

/// The same in the shape in which Llama 3's is published.
Json llama3_json() {
  Json json = gpt2_json(false);
  const Json regex = Json::object({{"Regex", std::string(split_regex(SplitKind::kLlama3))}});
  const Json split = Json::object(
      {{"type", "Split"}, {"pattern", regex}, {"behavior", "Isolated"}, {"invert", false}});
  const Json level = Json::object({{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", false}});
  json["pre_tokenizer"] =
      Json::object({{"type", "Sequence"}, {"pretokenizers", Json::Array{split, level}}});
  const Json begin = Json::object({{"SpecialToken", Json::object({{"id", "<|begin_of_text|>"}})}});
  const Json text = Json::object({{"Sequence", Json::object({{"id", "A"}})}});
  const Json frame =
      Json::object({{"type", "TemplateProcessing"}, {"single", Json::Array{begin, text}}});
  json["post_processor"] =
      Json::object({{"type", "Sequence"},
                    {"processors", Json::Array{Json::object({{"type", "ByteLevel"}}), frame}}});
  json["model"]["ignore_merges"] = true;
  json["model"]["vocab"]["\u0120ship"] = 260;  // no merges lead there
  json["model"]["vocab"]["<|endoftext|>"] = 261;
  json["added_tokens"] = Json::array();
  for (const char* special : {"<|begin_of_text|>", "<|end_of_text|>"})
    json["added_tokens"].push_back(
        Json::object({{"id", json.at("added_tokens").size() == 0 ? 259 : 262},
                      {"content", special},
                      {"special", true}}));
  json["model"]["vocab"] = [&] {
    Json kept = Json::object();
    for (const auto& [token, id] : json.at("model").at("vocab").as_object())
      kept[token == "<|endoftext|>" ? std::string("zz") : token] = id;
    return kept;
  }();
  return json;
}

TEST(BpeJson, ReadsAPublishedFileOfLlama3sKind) {
  const auto tokenizer = parse_tokenizer(llama3_json().dump(), "llama3");
  EXPECT_EQ(tokenizer->vocabulary_size(), 263);
  EXPECT_EQ(tokenizer->end_of_document(), 262);
  EXPECT_EQ(tokenizer->token_bytes(259), "<|begin_of_text|>");
  // " ship" and "zz" as a whole, without merges; "t" stays alone in "ships", and "1234" is cut.
  EXPECT_THAT(tokenizer->encode(" ship the zz!"), ElementsAre(260, 258, 220, 89, 89, 0));
  EXPECT_THAT(tokenizer->encode("zz"), ElementsAre(261));
  EXPECT_EQ(tokenizer->encode(" ships").size(), 6u);
  EXPECT_EQ(tokenizer->encode("<|begin_of_text|>").size(), 17u) << "text stays text";
  const auto again = parse_tokenizer(tokenizer->serialize(), "again");
  EXPECT_TRUE(dynamic_cast<const BpeTokenizer&>(*again).model() ==
              dynamic_cast<const BpeTokenizer&>(*tokenizer).model());
  const Json written = Json::parse(tokenizer->serialize(), "again");
  EXPECT_EQ(written.at("post_processor").dump(), llama3_json().at("post_processor").dump());
  EXPECT_TRUE(written.at("model").at("ignore_merges").as_bool());
}

TEST(BpeJson, EveryUnsupportedPartOfLlama3sKindIsNamed) {
  const auto refuse = [](auto change, std::initializer_list<std::string> parts) {
    Json json = llama3_json();
    change(json);
    expect_user_error([&] { parse_tokenizer(json.dump(), "file.json"); }, parts);
  };
  const auto refuse_part = [&](size_t part, const char* key, const Json& value,
                               std::initializer_list<std::string> parts) {
    refuse(
        [&](Json& j) {
          Json::Array list = j.at("pre_tokenizer").at("pretokenizers").as_array();
          list[part][key] = value;
          j["pre_tokenizer"]["pretokenizers"] = list;
        },
        parts);
  };
  refuse_part(0, "pattern", Json::object({{"Regex", "\\p{N}"}}),
              {"file.json", "pre_tokenizer.Split.pattern", "\\p{N}", "Llama 3"});
  refuse_part(0, "pattern", Json::object({{"String", " "}}), {"Split.pattern"});
  refuse_part(0, "behavior", "Removed", {"Split.behavior", "Removed"});
  refuse_part(0, "invert", true, {"Split.invert"});
  refuse_part(0, "type", "Digits", {"use_regex = false", "without a Split"});
  refuse_part(0, "type", "Punctuation", {"Sequence of Punctuation, ByteLevel"});
  refuse_part(1, "use_regex", true, {"use_regex = true", "behind a Split"});
  refuse_part(1, "add_prefix_space", true, {"add_prefix_space"});
  refuse(
      [](Json& j) {
        j["post_processor"] = Json::object({{"type", "BertProcessing"}});
      },
      {"post_processor", "BertProcessing"});
  refuse(
      [](Json& j) {
        j["post_processor"] =
            Json::object({{"type", "TemplateProcessing"}, {"single", Json::array()}});
      },
      {"TemplateProcessing.single"});
  refuse([](Json& j) { j["decoder"] = Json::object({{"type", "Sequence"}}); }, {"decoder"});
}

TEST(BpeJson, WritesWhatItReads) {
  const BpeModel model =
      train(testing::english(800) + testing::many_scripts() + testing::broken_utf8(), 400);
  const std::string text = bpe_to_json(model);
  const BpeModel read = bpe_from_json(Json::parse(text, "t"));
  EXPECT_TRUE(read == model);
  EXPECT_EQ(bpe_to_json(read), text);
  const Json json = Json::parse(text, "t");
  EXPECT_EQ(json.at("model").at("type").as_string(), "BPE");
  EXPECT_EQ(json.at("pre_tokenizer").at("type").as_string(), "ByteLevel");
  EXPECT_FALSE(json.at("pre_tokenizer").at("add_prefix_space").as_bool());
  EXPECT_EQ(json.at("added_tokens").as_array()[0].at("content").as_string(), "<|endoftext|>");
  EXPECT_EQ(json.at("model").at("merges").size(), model.merges.size());
}

TEST(BpeJson, ASpecialTokenMayStandOutsideTheVocabulary) {
  Json json = gpt2_json(false);
  Json vocabulary = Json::object();
  for (const auto& [token, id] : json.at("model").at("vocab").as_object())
    if (token != "<|endoftext|>") vocabulary[token] = id;
  json["model"]["vocab"] = vocabulary;
  json["added_tokens"].push_back(
      Json::object({{"id", 260}, {"content", "<pad or ¤>"}, {"special", true}}));
  const auto tokenizer = parse_tokenizer(json.dump(), "t");
  EXPECT_EQ(tokenizer->vocabulary_size(), 261);
  EXPECT_EQ(tokenizer->end_of_document(), 259);
  EXPECT_EQ(tokenizer->token_bytes(260), "<pad or ¤>");
}

TEST(BpeJson, EveryUnsupportedPartIsNamed) {
  const auto refuse = [](auto change, std::initializer_list<std::string> parts) {
    Json json = gpt2_json(false);
    change(json);
    expect_user_error([&] { parse_tokenizer(json.dump(), "file.json"); }, parts);
  };
  refuse(
      [](Json& j) {
        Json::Object members = j.at("model").at("vocab").as_object();
        for (auto& [token, id] : members)
          if (token == "Ċ") token = "ĊĊ";
        j["model"]["vocab"] = Json::from_members(std::move(members));
      },
      {"file.json", "no token \"Ċ\" for byte 0x0a"});
  const auto typed = [](const char* type) { return Json::object({{"type", type}}); };
  refuse([&](Json& j) { j["normalizer"] = typed("NFKC"); },
         {"file.json", "normalizer \"NFKC\"", "NFC, or none"});
  refuse([&](Json& j) { j["pre_tokenizer"] = typed("Whitespace"); },
         {"\"Whitespace\"", "ByteLevel"});
  refuse([&](Json& j) { j["pre_tokenizer"] = nullptr; }, {"pre_tokenizer", "ByteLevel"});
  refuse([&](Json& j) { j["pre_tokenizer"]["add_prefix_space"] = true; },
         {"add_prefix_space = true"});
  refuse([&](Json& j) { j["pre_tokenizer"]["use_regex"] = false; }, {"use_regex = false"});
  refuse([&](Json& j) { j["pre_tokenizer"] = typed("ByteLevel"); },
         {"add_prefix_space is missing"});
  refuse([&](Json& j) { j["post_processor"] = typed("TemplateProcessing"); },
         {"TemplateProcessing"});
  refuse([&](Json& j) { j["decoder"] = typed("WordPiece"); }, {"decoder \"WordPiece\""});
  refuse([&](Json& j) { j["truncation"] = Json::object({{"max_length", 5}}); }, {"truncation"});
  refuse([&](Json& j) { j["padding"] = Json::object({{"pad_id", 5}}); }, {"padding"});
  refuse([&](Json& j) { j["model"]["type"] = "WordLevel"; }, {"model \"WordLevel\"", "BPE"});
  refuse([&](Json& j) { j["model"]["dropout"] = 0.1; }, {"dropout"});
  refuse([&](Json& j) { j["model"]["byte_fallback"] = true; }, {"byte_fallback"});
  refuse([&](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; },
         {"continuing_subword_prefix"});
  refuse([&](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, {"end_of_word_suffix"});
  const auto refuse_added = [&](const char* content, const char* flag,
                                std::initializer_list<std::string> parts) {
    refuse(
        [&](Json& j) {
          j["normalizer"] = typed("NFC");
          j["added_tokens"].push_back(Json::object({{"id", 260}, {"content", content}}));
          Json::Array all = j.at("added_tokens").as_array();
          all.back()[flag] = true;
          j["added_tokens"] = all;
        },
        parts);
  };
  for (const char* flag : {"single_word", "lstrip", "rstrip", "normalized"})
    refuse_added("zz", flag, {"\"zz\"", flag});
  refuse_added("", "other", {"empty"});
  const auto two_parts = [](const Json& first) {
    return Json::object(
        {{"type", "Sequence"},
         {"pretokenizers", Json::Array{first, Json::object({{"type", "ByteLevel"},
                                                            {"add_prefix_space", false},
                                                            {"use_regex", true}})}}});
  };
  refuse([&](Json& j) { j["pre_tokenizer"] = two_parts(typed("Digits")); },
         {"individual_digits = false"});
}

TEST(BpeTokenizer, TextBecomesAddedTokensAsAWholeButNoSpecialOnes) {
  Json json = gpt2_json(false);
  for (const auto& [content, id] : {std::pair("<tool>", 260), std::pair("<tool>s", 261)})
    json["added_tokens"].push_back(
        Json::object({{"id", id}, {"content", content}, {"special", false}}));
  const auto tokenizer = parse_tokenizer(json.dump(), "t");
  EXPECT_EQ(tokenizer->vocabulary_size(), 262);
  EXPECT_THAT(tokenizer->encode("<tool> the<tool>s<tool>"), ElementsAre(260, 258, 261, 260));
  EXPECT_EQ(tokenizer->encode("<|endoftext|>").size(), 13u);
  std::string text;
  for (int i = 0; i < 30000; ++i) text += i % 1000 == 0 ? "<tool>" : "the strait ";
  EXPECT_EQ(tokenizer->encode(text, 3), tokenizer->encode(text, 1));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(BpeTokenizer, NormalFormCIsMadeOfTextButNotOfBytesOrAddedTokens) {
  Json json = gpt2_json(false);
  json["normalizer"] = Json::object({{"type", "NFC"}});
  json["added_tokens"].push_back(
      Json::object({{"id", 260}, {"content", "e\u0301e"}, {"special", false}}));
  const auto tokenizer = parse_tokenizer(json.dump(), "t");
  const auto back = [&](const std::string& text) {
    return tokenizer->decode(tokenizer->encode(text));
  };
  EXPECT_EQ(back("cafe\u0301 \u1112\u1161\u11ab\xff\u0301"), "caf\u00e9 \ud55c\xff\u0301");
  EXPECT_EQ(back("e\u0301e\u0301"), "e\u0301e\u0301");
  EXPECT_EQ(back("plain \u00e9"), "plain \u00e9");
  std::string text;
  for (int i = 0; i < 20000; ++i) text += i % 3 == 0 ? "e\u0301 " : "a \u0301b ";
  EXPECT_EQ(tokenizer->encode(text, 4), tokenizer->encode(text, 1));
}

TEST(BpeJson, DamagedVocabulariesAndMergesAreNamed) {
  const auto refuse = [](auto change, std::initializer_list<std::string> parts) {
    Json json = gpt2_json(false);
    change(json);
    expect_user_error([&] { parse_tokenizer(json.dump(), "file.json"); }, parts);
  };
  refuse([](Json& j) { j["model"]["vocab"]["he"] = 256; }, {"number 256"});
  refuse([](Json& j) { j["model"]["vocab"]["he"] = 260; }, {"\"he\"", "260", "0 to 259"});
  refuse([](Json& j) { j["model"]["vocab"]["he"] = -1; }, {"\"he\"", "-1"});
  refuse([](Json& j) { j["model"]["vocab"]["he"] = "x"; }, {"integer"});
  refuse([](Json& j) { j["model"]["vocab"]["h e"] = 260; }, {"\"h e\"", "byte-level alphabet"});
  refuse([](Json& j) { j["model"]["vocab"][""] = 260; }, {"token 260", "byte-level alphabet"});
  refuse([](Json& j) { j["model"]["merges"].push_back("he"); }, {"merge 3", "not a pair"});
  refuse([](Json& j) { j["model"]["merges"].push_back(Json::Array{"h"}); },
         {"merge 3", "not a pair"});
  refuse([](Json& j) { j["model"]["merges"].push_back("h x"); }, {"merge 3", "\"hx\""});
  refuse([](Json& j) { j["model"]["merges"].push_back("hh e"); }, {"merge 3", "\"hh\""});
  refuse([](Json& j) { j["model"]["merges"].push_back("h e"); }, {"merge 3", "twice"});
  refuse([](Json& j) { j["model"]["merges"] = 3; }, {"array"});
  refuse(
      [](Json& j) {
        j["added_tokens"] = Json::Array{Json::object({{"id", 3}, {"special", true}})};
      },
      {"content"});
  refuse(
      [](Json& j) {
        j["added_tokens"] =
            Json::Array{Json::object({{"id", 3}, {"content", "<|endoftext|>"}, {"special", true}})};
      },
      {"<|endoftext|>", "two numbers"});
  refuse(
      [](Json& j) {
        Json vocabulary = Json::object();
        for (const auto& [token, id] : j.at("model").at("vocab").as_object())
          vocabulary[token == "!" ? "hehe" : token] = id;
        j["model"]["vocab"] = vocabulary;
      },
      {"byte 0x21"});
}

TEST(ByteAlphabet, AgreesWithGpt2AndInverts) {
  EXPECT_EQ(bytes_to_visible(" \n\t"), "\u0120\u010a\u0109");
  EXPECT_EQ(bytes_to_visible("A~\xa1\xff"), "A~\u00a1\u00ff");
  EXPECT_EQ(bytes_to_visible(std::string("\0\x7f\x80\xad", 4)), "\u0100\u0121\u0122\u0143");
  std::string every;
  for (int byte = 0; byte < 256; ++byte) every += static_cast<char>(byte);
  EXPECT_EQ(visible_to_bytes(bytes_to_visible(every)), every);
  EXPECT_FALSE(visible_to_bytes("a b"));
  EXPECT_FALSE(visible_to_bytes("\u0144"));
  EXPECT_FALSE(visible_to_bytes("\xff"));
}

}  // namespace
}  // namespace strait
