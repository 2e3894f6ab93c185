#include "strait/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "strait/tokenizer/bpe_tokenizer.h"
#include "tests/data/expect_user_error.h"
#include "tests/data/sample_texts.h"
#include "tests/data/temporary_folder.h"
#include "tests/paths.h"

namespace strait {
namespace {

using ::testing::ElementsAre;
using testing::expect_user_error;
using testing::TemporaryFolder;

TEST(ByteTokenizer, TokensAreBytesAndAnythingComesBack) {
  const auto tokenizer = make_tokenizer("byte", "");
  EXPECT_EQ(tokenizer->vocabulary_size(), 256);
  EXPECT_THAT(tokenizer->encode("a\xff\n"), ElementsAre(97, 255, 10));
  const std::string all = testing::random_bytes(5000, 3) + testing::many_scripts();
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(all)), all);
  EXPECT_FALSE(tokenizer->end_of_document());
}

TEST(CharTokenizer, NumbersTheCharactersInAscendingOrder) {
  const std::string play =
      "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak!";
  const auto tokenizer = make_tokenizer("char", play);
  const std::set<char> distinct(play.begin(), play.end());  // ASCII only
  ASSERT_EQ(tokenizer->vocabulary_size(), static_cast<int64_t>(distinct.size()));
  int32_t expected = 0;
  for (const char c : distinct)
    EXPECT_THAT(tokenizer->encode(std::string(1, c)), ElementsAre(expected++));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(play)), play);
  EXPECT_THAT(make_tokenizer("char", "bé\U0001F600中a")->encode("a中é\U0001F600b"),
              ElementsAre(0, 3, 2, 4, 1));
}

TEST(CharTokenizer, TinyShakespeareHas65Characters) {
  const std::string path = test::in_source("../shared/data/tiny_shakespeare.txt");
  if (!std::filesystem::exists(path))
    return;  // an additional check on a text that is not in the repository
  const std::string text = read_file(path);
  EXPECT_EQ(text.size(), 1115394u);
  const auto tokenizer = make_tokenizer("char", text);
  EXPECT_EQ(tokenizer->vocabulary_size(), 65);
  // nanoGPT prints for it: all the unique characters, newline first, then space.
  EXPECT_THAT(tokenizer->encode("\n !$&'"), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(CharTokenizer, NamesWhatItCannotExpress) {
  const auto tokenizer = make_tokenizer("char", "abc");
  expect_user_error([&] { tokenizer->encode("abé"); },
                    {"\"é\" (U+00E9)", "byte offset 2", "3 characters"});
  expect_user_error([&] { tokenizer->encode("a\n"); }, {"U+000A", "byte offset 1"});
  expect_user_error([&] { tokenizer->encode("ab\xff"); }, {"0xff", "byte offset 2", "not"});
  expect_user_error([&] { make_tokenizer("char", ""); }, {"at least one character"});
  expect_user_error([&] { make_tokenizer("char", "a\xc0"); }, {"0xc0", "byte offset 1"});
}

TEST(Tokenizer, DecodeRefusesATokenThatIsOutOfRange) {
  for (const char* spec : {"byte", "char", "bpe:300"}) {
    const auto tokenizer = make_tokenizer(spec, testing::english(200));
    const auto size = static_cast<int32_t>(tokenizer->vocabulary_size());
    for (const int32_t token : {-1, size, size + 1000}) {
      expect_user_error(
          [&] {
            tokenizer->decode(std::vector<int32_t>{0, token});
          },
          {"token " + std::to_string(token), "vocabulary has " + std::to_string(size)});
    }
    EXPECT_NO_THROW(tokenizer->decode(std::vector<int32_t>{0, size - 1})) << spec;
  }
}

TEST(Tokenizer, BytesOfTokensConcatenateToTheText) {
  const std::string text = testing::english(50) + testing::many_scripts();
  for (const char* spec : {"byte", "char", "bpe:280"}) {
    const auto tokenizer = make_tokenizer(spec, text);
    std::string streamed;
    for (const int32_t token : tokenizer->encode(text)) streamed += tokenizer->token_bytes(token);
    EXPECT_EQ(streamed, text) << spec;
  }
}

TEST(Tokenizer, EveryKindSurvivesAFile) {
  const TemporaryFolder folder;
  const std::string text = testing::english(400) + testing::many_scripts();
  for (const char* spec : {"byte", "char", "bpe:400"}) {
    const auto tokenizer = make_tokenizer(spec, text);
    const std::string path = folder.at("tokenizer.json");
    save_tokenizer(*tokenizer, path);
    for (const auto& loaded : {load_tokenizer(path), make_tokenizer(path, "")}) {
      EXPECT_EQ(loaded->kind(), tokenizer->kind());
      EXPECT_EQ(loaded->vocabulary_size(), tokenizer->vocabulary_size());
      EXPECT_EQ(loaded->encode(text), tokenizer->encode(text)) << spec;
      EXPECT_EQ(loaded->end_of_document(), tokenizer->end_of_document());
      EXPECT_EQ(loaded->serialize(), tokenizer->serialize());
    }
  }
}

TEST(Tokenizer, AWrongSpecNamesTheNearestChoice) {
  const auto make = [](const std::string& spec) {
    return [spec] { make_tokenizer(spec, "text"); };
  };
  const char* key = "data.tokenizer";
  expect_user_error(make("chars"), {"\"chars\"", "did you mean \"char\""}, key);
  expect_user_error(make("bytes"), {"did you mean \"byte\""}, key);
  expect_user_error(make("bpe"), {"did you mean"}, key);
  expect_user_error(make("bpe:"), {"size of the vocabulary", "bpe:4096"}, key);
  expect_user_error(make("bpe:4k"), {"bpe:4k", "bpe:4096"}, key);
  expect_user_error(make("bpe:256"), {"257"}, key);
  expect_user_error(make("bpe:-5"), {"257"}, key);
  expect_user_error(make("bpe:99999999"), {"1000000"}, key);
  expect_user_error(make("bpe:99999999999999999999"), {"bpe:4096"}, key);
  expect_user_error(make("no/such/tokenizer.json"), {"no/such/tokenizer.json", "does not exist"},
                    key);
}

TEST(Tokenizer, ADamagedFileOfOursIsRefused) {
  const auto parse = [](const std::string& text) {
    return [text] { parse_tokenizer(text, "t.json"); };
  };
  expect_user_error(parse("{"), {"t.json", "JSON"});
  expect_user_error(parse("[]"), {"t.json", "not a JSON object"});
  expect_user_error(parse("{}"), {"t.json", "model"});
  expect_user_error(parse(R"({"format":"strait.tokenizer/2","kind":"byte"})"),
                    {"strait.tokenizer/2", "strait.tokenizer/1"});
  expect_user_error(parse(R"({"format":"strait.tokenizer/1"})"), {"kind"});
  expect_user_error(parse(R"({"format":"strait.tokenizer/1","kind":"word"})"),
                    {"word", "byte, char"});
  const std::string chars = R"({"format":"strait.tokenizer/1","kind":"char","characters":)";
  expect_user_error(parse(chars + "[]}"), {"at least one"});
  expect_user_error(parse(chars + "[98,97]}"), {"characters[1] = 97"});
  expect_user_error(parse(chars + "[97,97]}"), {"characters[1] = 97"});
  expect_user_error(parse(chars + "[97,55296]}"), {"characters[1] = 55296"});
  expect_user_error(parse(chars + "[-1]}"), {"characters[0] = -1"});
  expect_user_error(parse(chars + "[1114112]}"), {"characters[0] = 1114112"});
  expect_user_error(parse(chars + "[\"a\"]}"), {"integer"});
}

}  // namespace
}  // namespace strait
