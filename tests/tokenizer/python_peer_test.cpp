// The BPE tokenizer against an implementation in Python that shares no line with it, on a megabyte
// of mixed text, and against tokens that Hugging Face's library made.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/tokenizer/bpe_json.h"
#include "strait/tokenizer/bpe_tokenizer.h"
#include "strait/tokenizer/bpe_trainer.h"
#include "strait/tokenizer/tokenizer.h"
#include "tests/data/sample_texts.h"
#include "tests/data/temporary_folder.h"
#include "tests/paths.h"

namespace strait {
namespace {

namespace fs = std::filesystem;

/// First and last code point; assigned throughout since long before Unicode 14.
struct Range {
  uint32_t first, last;
};
constexpr std::array kScripts = {
    Range{0x21, 0x7e},       Range{0xc0, 0xff},       Range{0x100, 0x17f},
    Range{0x3b1, 0x3c9},     Range{0x410, 0x44f},     Range{0x5d0, 0x5ea},
    Range{0x627, 0x63a},     Range{0x905, 0x939},     Range{0xe01, 0xe2e},
    Range{0x3041, 0x3096},   Range{0x30a1, 0x30fa},   Range{0x4e00, 0x9fa5},
    Range{0xac00, 0xd7a3},   Range{0x300, 0x36f},     Range{0x660, 0x669},
    Range{0x2160, 0x216b},   Range{0xb2, 0xb3},       Range{0x2000, 0x200a},
    Range{0x1f300, 0x1f320}, Range{0x1f600, 0x1f64f}, Range{0x1f466, 0x1f469},
    Range{0x1f3fb, 0x1f3ff}, Range{0x200c, 0x200d},   Range{0xfe00, 0xfe0f},
    Range{0x20000, 0x2a6d6}, Range{0x1d400, 0x1d454}, Range{0x2190, 0x21ff}};

std::string utf8(uint32_t c) {
  std::string out;
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | (c >> 6));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 63));
  } else {
    out += static_cast<char>(0xf0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 63));
    out += static_cast<char>(0x80 | ((c >> 6) & 63));
  }
  if (c >= 0x80) out += static_cast<char>(0x80 | (c & 63));
  return out;
}

/// Words of one script each, digits, contractions in any case, every kind of white space; with
/// `broken` also bytes that are not UTF-8.
std::string mixed(size_t words, uint64_t seed, bool broken) {
  static const std::vector<std::string> kGaps = {
      " ",      " ",      " ", " ", "  ", "\n",     "\n",     "\t",     "\r\n",
      "\n\n  ", "   \n ", "",  "",  "\f", "\u00a0", "\u0085", "\u2028", "\u3000"};
  static const std::vector<std::string> kEnds = {"'s", "'S",  "'\u017f", "'ll", "'Ll", "'t",
                                                 "'D", "'re", "'rE",     "'x",  "'",   "''ve"};
  const RandomStream stream(seed, "tests.mixed");
  uint64_t next = 0;
  const auto below = [&](uint64_t bound) { return stream.below(next++, bound); };
  std::string text;
  for (size_t word = 0; word < words; ++word) {
    const Range& script = kScripts[below(kScripts.size())];
    const uint64_t kind = below(20);
    if (kind == 0) text += std::to_string(below(100000000));
    const uint64_t length = 1 + below(7);
    for (uint64_t i = 0; kind > 1 && i < length; ++i)
      text += utf8(script.first + static_cast<uint32_t>(below(script.last - script.first + 1)));
    if (below(5) == 0) text += kEnds[below(kEnds.size())];
    if (broken && below(12) == 0) text += testing::random_bytes(1 + below(4), seed + word);
    text += kGaps[below(kGaps.size())];
  }
  return text;
}

std::string code() {
  std::string text;
  for (const char* folder : {"strait/kernel", "strait/data", "tests/data", "bench/peers"}) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(test::in_source(folder)))
      if (entry.is_regular_file()) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths) text += read_file(path.string());
  }
  return text;
}

std::vector<int32_t> python_tokens(const std::string& tokenizer_json, const std::string& text) {
  const testing::TemporaryFolder folder;
  const std::string base = folder.path();
  write_file_atomically(base + "/tokenizer.json", tokenizer_json);
  write_file_atomically(base + "/text", text);
  const std::string command =
      "python3 -B " + test::in_source("bench/peers/bpe_reference.py encode ") + base +
      "/tokenizer.json " + base + "/text " + base + "/out 2>" + base + "/log";
  EXPECT_EQ(std::system(command.c_str()), 0) << read_file(base + "/log");
  const std::string bytes = read_file(base + "/out");
  std::vector<int32_t> tokens(bytes.size() / 4);
  std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

void expect_same_tokens(const BpeModel& model, const std::string& text, bool comes_back = true) {
  const std::string json = bpe_to_json(model);
  const auto tokenizer = parse_tokenizer(json, "tokenizer.json");
  const auto ours = tokenizer->encode(text, 2);
  const auto theirs = python_tokens(json, text);
  const size_t common = std::min(ours.size(), theirs.size());
  const size_t first = static_cast<size_t>(
      std::mismatch(ours.begin(), ours.begin() + common, theirs.begin()).first - ours.begin());
  if (first < common)
    FAIL() << "token " << first << " differs behind \""
           << tokenizer->decode(std::span(ours).subspan(first < 5 ? 0 : first - 5, 10)) << "\"";
  EXPECT_EQ(ours.size(), theirs.size());
  if (comes_back) {
    EXPECT_EQ(tokenizer->decode(ours), text);
  }
}

/// tests/fixtures/expected-tokens.json states which release of that library made the tokens.
TEST(HuggingFaceTokens, AreOurs) {
  const std::string fixtures = test::in_source("tests/fixtures/");
  const Json expected = Json::parse(read_file(fixtures + "expected-tokens.json"), "expected");
  const std::string text = expected.at("text").as_string();
  for (const char* name : {"gpt2", "llama"}) {
    const auto tokenizer =
        load_tokenizer(fixtures + name + std::string("-hugging-face/tokenizer.json"));
    std::vector<int32_t> theirs;
    for (const Json& token : expected.at("tokens").at(name).as_array())
      theirs.push_back(static_cast<int32_t>(token.as_integer()));
    EXPECT_EQ(tokenizer->encode(text), theirs) << name;
    EXPECT_EQ(tokenizer->decode(theirs), text) << name;
  }
}

/// Llama's with other members, as Qwen 2's and SmolLM2's have them.
TEST(HuggingFaceTokens, OfOtherKindsAreOurs) {
  const std::string fixtures = test::in_source("tests/fixtures/");
  const Json expected = Json::parse(read_file(fixtures + "expected-tokens.json"), "expected");
  const std::string base = fixtures + "llama-hugging-face/tokenizer.json";
  for (const auto& [name, variant] : expected.at("variants").as_object()) {
    Json json = Json::parse(read_file(base), base);
    for (const auto& [key, value] : variant.at("members").as_object()) json[key] = value;
    const std::string text = variant.at("text").as_string();
    std::vector<int32_t> theirs;
    for (const Json& token : variant.at("tokens").as_array())
      theirs.push_back(static_cast<int32_t>(token.as_integer()));
    const auto tokenizer = parse_tokenizer(json.dump(), name);
    EXPECT_EQ(tokenizer->encode(text), theirs) << name;
    EXPECT_EQ(tokenizer->decode(theirs), variant.at("decoded").as_string()) << name;
    const auto again = parse_tokenizer(tokenizer->serialize(), name);
    EXPECT_EQ(again->encode(text), theirs) << name;
    EXPECT_EQ(again->serialize(), tokenizer->serialize()) << name;
  }
}

class PythonPeer : public ::testing::Test {
 protected:
  PythonPeer() {
    text_ = code();
    text_ = text_.substr(0, 400000) + testing::english(30000) + testing::many_scripts();
    for (uint64_t seed = 0; text_.size() < 1000000; ++seed)
      text_ += mixed(2000, seed, seed % 2 == 1) + testing::broken_utf8();
    BpeTrainOptions options;
    options.vocabulary_size = 4000;
    options.sample_bytes = 300000;
    model_ = train_bpe(text_, options);
  }
  std::string text_;
  BpeModel model_;
};

TEST_F(PythonPeer, Gpt2KindGivesTheSameTokensOnAMegabyte) {
  ASSERT_GE(text_.size(), 1000000u);
  expect_same_tokens(model_, text_);
}

TEST_F(PythonPeer, SmolLm2KindGivesTheSameTokensOnAMegabyte) {
  model_.split = SplitKind::kGpt2Digits;
  expect_same_tokens(model_, text_);
}

TEST_F(PythonPeer, Qwen2KindGivesTheSameTokensOnAMegabyte) {
  model_.split = SplitKind::kQwen2;
  expect_same_tokens(model_, text_);
  model_.nfc = true;
  for (const char* added : {"strait is", "a b", "\u0301", " strait is"}) {
    model_.added_tokens.push_back(static_cast<int32_t>(model_.tokens.size()));
    model_.tokens.emplace_back(added);
  }
  expect_same_tokens(model_, text_, false);
}

TEST_F(PythonPeer, Llama3KindGivesTheSameTokensOnAMegabyte) {
  BpeModel model = model_;
  model.split = SplitKind::kLlama3;
  expect_same_tokens(model, text_);
  // Without its last merges many tokens are reached only as a whole piece.
  model.merges.resize(model.merges.size() - 1500);
  const auto without = BpeTokenizer(model).encode(text_);
  expect_same_tokens(model, text_);
  model.ignore_merges = true;
  EXPECT_LT(BpeTokenizer(model).encode(text_).size(), without.size());
  expect_same_tokens(model, text_);
}

}  // namespace
}  // namespace strait
