// Data into llm.c shards and Megatron pairs: what training then sees is what it saw before.
#include "strait/convert/token_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "strait/base/json.h"
#include "strait/data/corpus.h"
#include "tests/data/expect_user_error.h"
#include "tests/data/sample_texts.h"
#include "tests/data/temporary_folder.h"
#include "tests/data/token_files.h"

namespace strait::convert {
namespace {

using strait::testing::expect_user_error;
using strait::testing::options_for;
using strait::testing::TemporaryFolder;
using ::testing::ElementsAre;

/// The converted folder with the default options.
Corpus read_back(const std::string& folder, const std::string& separator = "") {
  return make_corpus(options_for(folder, "char", 0.1, separator));
}

TEST(TokenFiles, AStreamOfTextComesBackTokenByToken) {
  const TemporaryFolder folder;
  const std::string path = folder.write("t.txt", testing::english(3000));
  int number = 0;
  for (const char* tokenizer : {"byte", "char", "bpe:300"})
    for (const std::string form : {"llm.c", "megatron"}) {
      const DataOptions data = options_for(path, tokenizer, 0.1);
      const Corpus wanted = make_corpus(data);
      TokenFileOptions options;
      options.form = form;
      options.shard_tokens = wanted.training.tokens.size() / 3;
      const std::string to = folder.at("to" + std::to_string(number++));
      const Json done = convert_data(data, to, options);
      const Corpus found = read_back(to);
      EXPECT_EQ(found.training.tokens, wanted.training.tokens) << tokenizer << form;
      EXPECT_EQ(found.validation.tokens, wanted.validation.tokens) << tokenizer << form;
      EXPECT_EQ(found.validation.scored_bytes, wanted.validation.scored_bytes);
      EXPECT_EQ(found.tokenizer->serialize(), wanted.tokenizer->serialize());
      EXPECT_EQ(done.at("training_tokens").as_integer(), wanted.training.tokens.size());
      EXPECT_TRUE(done.at("documents").is_null());
      if (form == "llm.c") {
        EXPECT_TRUE(std::filesystem::exists(to + "/tokens_train_000002.bin"));
      }
      EXPECT_EQ(done.at("files").size(),
                form == "llm.c" ? (wanted.training.tokens.size() % 3 ? 6u : 5u) : 5u);
    }
}

/// Documents of a part as texts, without the marks.
std::vector<std::string> documents(const Corpus& corpus, const TokenPart& part) {
  std::vector<std::string> found;
  const std::vector<int32_t> tokens = part.tokens.to_vector();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool starts =
        std::count(part.document_starts.begin(), part.document_starts.end(), i) > 0 ||
        tokens[i] == part.document_token;
    if (starts) found.emplace_back();
    if (tokens[i] != corpus.tokenizer->end_of_document())
      found.back() += corpus.tokenizer->token_bytes(tokens[i]);
  }
  return found;
}

TEST(TokenFiles, DocumentsKeepTheirBordersFromEveryFormToEveryForm) {
  const TemporaryFolder folder;
  std::string lines, text;
  std::vector<std::string> wanted;
  for (int i = 0; i < 30; ++i) {
    wanted.push_back(testing::english(5 + i % 3) + std::to_string(i));
    lines += Json::object({{"text", wanted.back()}}).dump() + "\n";
    text += wanted.back() + "<|endoftext|>";
  }
  const std::string end = "<|endoftext|>";
  std::vector<DataOptions> sources = {
      options_for(folder.write("d.jsonl", lines), "bpe:300", 0.2),
      options_for(folder.write("d.txt", text), "bpe:300", 0.2, end)};
  for (size_t i = 0; i < sources.size(); ++i)
    for (const std::string form : {"llm.c", "megatron"}) {
      const std::string to = folder.at("to" + std::to_string(i) + form);
      const Json done = convert_data(sources[i], to, {.form = form, .threads = 2});
      const Corpus found = read_back(to, end);
      std::vector<std::string> all = documents(found, found.training);
      const size_t training = all.size();
      for (const std::string& document : documents(found, found.validation))
        all.push_back(document);
      if (sources[i].path.ends_with(".txt")) {  // cut inside a document
        EXPECT_EQ(all.size(), 31u);
        EXPECT_EQ(all[training - 1] + all[training], wanted[training - 1]);
      } else {
        EXPECT_EQ(all, wanted) << sources[i].path << form;
        EXPECT_EQ(done.at("documents").as_integer(), 30);
      }
      EXPECT_NEAR(static_cast<double>(training), 24, 1);
      if (sources.size() < 4) sources.push_back(options_for(to, "char", 0.1, end));
      // From llm.c to Megatron and back, with the folder's own validation files.
    }
}

TEST(TokenFiles, TheBytesAreWhatTheFormatsSay) {
  const TemporaryFolder folder;
  const std::string path = folder.write("d.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n");
  const DataOptions data = options_for(path, "bpe:257", 0);
  convert_data(data, folder.at("s"), {});
  const auto tokenizer = load_tokenizer(folder.at("s/tokenizer.json"));
  const int64_t end = *tokenizer->end_of_document();
  const auto token = [&](const char* text) {
    return static_cast<int64_t>(tokenizer->encode(text).at(0));
  };
  EXPECT_EQ(read_file(folder.at("s/tokens_train_000000.bin")),
            testing::llmc_shard({end, token("a"), token("b"), end, token("c")}));
  convert_data(data, folder.at("m"), {.form = "megatron"});
  EXPECT_EQ(read_file(folder.at("m/tokens_train.bin")),
            testing::raw_all<uint16_t>(
                std::vector<int64_t>{token("a"), token("b"), end, token("c"), end}));
  EXPECT_EQ(read_file(folder.at("m/tokens_train.idx")),
            testing::megatron_index(8, 2, {3, 2}, {0, 1, 2}));
}

TEST(TokenFiles, LargeVocabulariesTakeFourBytes) {
  const TemporaryFolder folder;
  const std::string from = folder.write("in.bin", testing::llmc_shard_32({70000, 1, 2}));
  convert_data(options_for(from, "ids:70001", 0), folder.at("s"), {});
  EXPECT_EQ(read_file(folder.at("s/tokens_train_000000.bin")),
            testing::llmc_shard_32({70000, 1, 2}));
  convert_data(options_for(from, "ids:70001", 0), folder.at("m"), {.form = "megatron"});
  EXPECT_EQ(read_file(folder.at("m/tokens_train.idx")), testing::megatron_index(4, 4, {3}, {0, 1}));
  EXPECT_EQ(read_back(folder.at("m")).tokenizer->kind(), "ids");
}

TEST(TokenFiles, ARefusalLeavesNothing) {
  const TemporaryFolder folder;
  const std::string to = folder.at("to");
  const std::string bad = folder.write("bad.jsonl", "{\"text\": \"ab\"}\n{}\n");
  expect_user_error([&] { convert_data(options_for(bad, "byte", 0), to, {}); },
                    {"bad.jsonl", "line 2"}, "data.text_field");
  EXPECT_FALSE(std::filesystem::exists(to));
  const std::string text = folder.write("t.txt", "a|b");
  expect_user_error([&] { convert_data(options_for(text, "byte", 0, "|"), to, {}); },
                    {"megatron", "end-of-document"}, "data.tokenizer");
  expect_user_error(
      [&] { convert_data(options_for(text, "byte", 0), folder.at("x.safetensors"), {}); },
      {"x.safetensors", "--to llm.c writes a folder"}, "--to");
  const std::string lines = folder.write("l.jsonl", "{\"text\": \"ab\"}\n");
  expect_user_error([&] { convert_data(options_for(lines, "byte", 0, "|"), to, {}); },
                    {"megatron", "end-of-document"}, "data.tokenizer");
  EXPECT_FALSE(std::filesystem::exists(to));
  std::filesystem::create_directory(to);
  expect_user_error([&] { convert_data(options_for(text, "byte", 0), to, {}); }, {"already there"});
}

TEST(TokenFiles, NothingToTrainOnIsRefused) {
  const TemporaryFolder folder;
  for (const char* lines : {"", "\n", "{\"text\": \"\"}\n{\"text\": \"\"}\n"})
    for (const std::string form : {"llm.c", "megatron"}) {
      const std::string path = folder.write("e.jsonl", lines);
      expect_user_error(
          [&] { convert_data(options_for(path, "byte", 0.1), folder.at("to"), {form}); },
          {"e.jsonl", "no tokens"}, "data.path");
    }
  const std::string text = folder.write("t.txt", "abc");
  expect_user_error([&] { convert_data(options_for(text, "byte", 0.9), folder.at("to"), {}); },
                    {"t.txt", "data.validation_share = 0.9"}, "data.path");
  EXPECT_FALSE(std::filesystem::exists(folder.at("to")));
}

/// Ends in the middle of its first file, which the system lets grow no further.
void convert_until_killed(const DataOptions& data, const std::string& to) {
  std::signal(SIGXFSZ, SIG_DFL);
  const rlimit most{4000, 4000};
  ::setrlimit(RLIMIT_FSIZE, &most);
  convert_data(data, to, {});
}

TEST(TokenFiles, AKilledConversionBlocksNoLaterOne) {
  const TemporaryFolder folder;
  const std::string path = folder.write("in/t.txt", testing::english(3000));
  const DataOptions data = options_for(path, "byte", 0);
  const std::string to = folder.at("to"), whole = folder.at("whole");
  convert_data(data, whole, {});
  EXPECT_EXIT(convert_until_killed(data, to), ::testing::KilledBySignal(SIGXFSZ), "");
  EXPECT_FALSE(std::filesystem::exists(to));
  EXPECT_TRUE(std::filesystem::exists(folder.at(".to.partial")));
  convert_data(data, to + "/", {});
  EXPECT_EQ(read_back(to).training.tokens, read_back(whole).training.tokens);
  EXPECT_FALSE(std::filesystem::exists(folder.at(".to.partial")));
}

}  // namespace
}  // namespace strait::convert
