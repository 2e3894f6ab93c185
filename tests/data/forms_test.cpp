// Corpora of JSON-lines, llm.c shards and Megatron pairs: what is found, equal to text where it
// must be, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>

#include "strait/base/json.h"
#include "strait/data/loader.h"
#include "tests/data/expect_user_error.h"
#include "tests/data/sample_texts.h"
#include "tests/data/temporary_folder.h"
#include "tests/data/token_files.h"

namespace strait {
namespace {

using ::testing::ElementsAre;
using testing::expect_user_error;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::llmc_shard;
using testing::megatron_index;
using testing::options_for;
using testing::raw_all;
using testing::TemporaryFolder;

std::string zipped(const std::string& text) {
  std::string out(compressBound(text.size()) + 32, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

std::vector<int64_t> wide(const Tokens& tokens) {
  const std::vector<int32_t> all = tokens.to_vector();
  return {all.begin(), all.end()};
}

std::string text_of(const Corpus& corpus, const TokenPart& part) {
  return corpus.tokenizer->decode(part.tokens.to_vector());
}

constexpr const char* kThree =
    "{\"id\": 1, \"text\": \"one \\u00e9\"}\n\n{\"text\": \"\"}\n{\"text\": \"two\\nlines\", "
    "\"n\": "
    "{}}\r\n{\"text\": \"three\"}";

TEST(JsonLines, LinesBecomeDocumentsPlainOrZipped) {
  const TemporaryFolder folder;
  for (const char* name :
       {"a.jsonl", "a.ndjson", "a.json", "a.jsonl.gz", "zipped-without-the-name.jsonl"}) {
    const bool zip = std::string(name).find("z") != std::string::npos;
    const std::string path = folder.write(name, zip ? zipped(kThree) : kThree);
    const Corpus stream = make_corpus(options_for(path, "byte"));
    EXPECT_EQ(text_of(stream, stream.training), "one é\ntwo\nlines\nthree\n") << name;
    EXPECT_THAT(stream.training.document_starts, IsEmpty());
    EXPECT_EQ(stream.training.num_documents(), 3);
    const Corpus packed = make_corpus(options_for(path, "byte", 0, "|"));
    EXPECT_EQ(text_of(packed, packed.training), "one é|two\nlines|three|");
    EXPECT_THAT(packed.training.document_starts, ElementsAre(0, 7, 17));
    EXPECT_EQ(packed.training.num_documents(), 3);
    EXPECT_EQ(packed.training.text_bytes, 23);
    EXPECT_EQ(packed.training.scored_tokens, 20);
  }
}

TEST(JsonLines, EqualTheSameTextWithSeparators) {
  const TemporaryFolder folder;
  std::string text, lines;
  for (int i = 0; i < 400; ++i) {
    const std::string document = testing::english(20 + i % 7);
    text += (i > 0 ? "<END>" : "") + document;
    lines += Json::object({{"body", document}}).dump() + "\n";
  }
  DataOptions json = options_for(folder.write("t.jsonl", lines), "byte", 0, "<END>");
  json.text_field = "body";
  const DataOptions plain = options_for(folder.write("t.txt", text), "byte", 0, "<END>");
  for (const char* tokenizer : {"byte", "char", "bpe:400"}) {
    json.tokenizer = tokenizer;
    DataOptions wanted = plain;
    wanted.tokenizer = tokenizer;
    const Corpus a = make_corpus(json, nullptr, 3), b = make_corpus(wanted);
    if (std::string(tokenizer) == "bpe:400")
      EXPECT_EQ(a.training.tokens, b.training.tokens);
    else  // the text has no separator behind the last document
      EXPECT_EQ(text_of(a, a.training), text_of(b, b.training) + "<END>") << tokenizer;
    EXPECT_EQ(a.training.document_starts, b.training.document_starts) << tokenizer;
  }
}

TEST(JsonLines, TheCutIsBetweenDocumentsAndFilesMayBeForValidation) {
  const TemporaryFolder folder;
  const std::string path = folder.write("d/a.jsonl", kThree);
  for (const auto& [share, training] :
       std::vector<std::pair<double, std::string>>{{0.0, "one é\ntwo\nlines\nthree\n"},
                                                   {0.2, "one é\ntwo\nlines\nthree\n"},
                                                   {0.25, "one é\ntwo\nlines\n"},
                                                   {0.3, "one é\ntwo\nlines\n"},
                                                   {0.75, "one é\n"}}) {
    const Corpus corpus = make_corpus(options_for(path, "char", share));
    EXPECT_EQ(text_of(corpus, corpus.training), training) << share;
    EXPECT_EQ(text_of(corpus, corpus.training) + text_of(corpus, corpus.validation),
              "one é\ntwo\nlines\nthree\n");
  }
  folder.write("d/b-validation.01.jsonl", "{\"text\": \"held out\"}\n");
  const Corpus named = make_corpus(options_for(folder.at("d"), "char", 0.1));
  EXPECT_EQ(text_of(named, named.training), "one é\ntwo\nlines\nthree\n");
  EXPECT_EQ(text_of(named, named.validation), "held out\n");
  expect_user_error([&] { make_corpus(options_for(folder.at("d"), "char", 0.2)); },
                    {"b-validation.01.jsonl", "0.1"}, "data.validation_share");
}

TEST(JsonLines, FoldersMayBeForValidationToo) {
  const TemporaryFolder folder;
  folder.write("invalid/train/a.jsonl", kThree);
  folder.write("invalid/Val/b.jsonl", "{\"text\": \"held out\"}\n");
  const Corpus corpus = make_corpus(options_for(folder.at("invalid"), "char", 0.1));
  EXPECT_EQ(text_of(corpus, corpus.training), "one é\ntwo\nlines\nthree\n");
  EXPECT_EQ(text_of(corpus, corpus.validation), "held out\n");
}

/// Documents of uneven lengths, at which a cut that counts separators lies elsewhere.
TEST(JsonLines, MergesAreLearnedFromTheTrainingPart) {
  const TemporaryFolder folder;
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += "{\"text\": \"qzqzqzqzqzqzqzqzqzqz\"}\n";
  for (int i = 0; i < 400; ++i) lines += "{\"text\": \"ab\"}\n";
  const std::string path = folder.write("uneven.jsonl", lines);
  const Corpus corpus = make_corpus(options_for(path, "bpe:300", 0.5));
  EXPECT_THAT(text_of(corpus, corpus.training), ::testing::Not(HasSubstr("ab")));
  EXPECT_EQ(corpus.tokenizer->encode("ab").size(), 2u);
  EXPECT_LT(corpus.tokenizer->encode("qz").size(), 2u);
}

TEST(JsonLines, WrongLinesAreNamed) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& lines, int64_t line,
                           std::initializer_list<std::string> parts, const std::string& key) {
    for (const bool zip : {false, true}) {
      const std::string path = folder.write("bad.jsonl", zip ? zipped(lines) : lines);
      const auto open = [&] { make_corpus(options_for(path, "byte")); };
      expect_user_error(open, parts, key);
      try {
        open();
      } catch (const UserError& error) {
        EXPECT_EQ(error.place().file, path);
        EXPECT_EQ(error.place().line, line);
      }
    }
  };
  const std::string good = "{\"text\": \"x\"}\n";
  refused(good + good + "{\"txet\": \"x\", \"id\": 1}\n", 3,
          {"line 3", "no member \"text\"", "data.text_field = \"txet\""}, "data.text_field");
  refused(good + "{\"id\": 1}", 2, {"nor any other"}, "data.text_field");
  refused("{\"text\": 7}\n", 1, {"is no string"}, "data.text_field");
  refused(good + "\n[\"text\"]\n", 3, {"no JSON object"}, "data.path");
  refused(good + "{\"text\": \"x\"\n", 2, {"line 2", "byte"}, "data.path");
  refused(good + "{\"text\": \"\xff\"}\n", 2, {"UTF-8"}, "data.path");
  const std::string cut = folder.write("cut.jsonl", zipped(good).substr(0, 25));
  expect_user_error([&] { make_corpus(options_for(cut, "byte")); }, {"cut.jsonl", "ends too early"},
                    "data.path");
}

TEST(JsonLines, ALineThatNeverEndsIsCut) {
  const TemporaryFolder folder;
  // A quarter of a megabyte that unpacks to 257 MiB.
  const std::string member = zipped(std::string(1 << 20, ' '));
  std::string bomb = zipped("{\"text\": \"x\"}\n");
  for (int i = 0; i < 257; ++i) bomb += member;
  const std::string path = folder.write("bomb.jsonl", bomb);
  expect_user_error([&] { make_corpus(options_for(path, "byte")); },
                    {"bomb.jsonl, line 2", "longer than 268435456 bytes"}, "data.path");
}

TEST(Folders, ATokenizerJsonIsNoText) {
  const TemporaryFolder folder;
  folder.write("d/a.txt", "one ");
  folder.write("d/b.json", "{\n\"two\": 2}");
  folder.write("d/tokenizer.json", "{\"version\": \"1.0\"}");
  folder.write("d/more/tokenizer.json", "{}");
  const Corpus corpus = make_corpus(options_for(folder.at("d"), "byte"));
  EXPECT_EQ(text_of(corpus, corpus.training), "one {\n\"two\": 2}");
  folder.write("alone/tokenizer.json", "{\n\"version\": \"1.0\"}");
  expect_user_error([&] { make_corpus(options_for(folder.at("alone"), "byte")); },
                    {"alone", "nothing but", "tokenizer.json", "text, JSON-lines"}, "data.path");
}

/// Where a corpus for the characters of "abc |\n" says that another one stands.
UserError refused_character(const DataOptions& options, int threads = 1) {
  try {
    make_corpus(options, make_tokenizer("char", "abc |\n"), threads);
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, "data.path");
    return error;
  }
  ADD_FAILURE() << options.path << " was accepted";
  return UserError("");
}

TEST(UnknownCharacters, AreCountedFromTheBeginningOfTheirFile) {
  const TemporaryFolder folder;
  const std::string document = "abc abc|";  // eight bytes
  std::string text;
  while (text.size() < 5000) text += document;
  const std::string odd = folder.write("odd.txt", text + "\u00e9" + text);
  const std::string good = folder.write("d/a.txt", text + "a");
  const std::string bad = folder.write("d/b.txt", text + "\u00e9");
  for (const char* separator : {"", "|"})
    for (const double share : {0.0, 0.9}) {
      const UserError in_file = refused_character(options_for(odd, "char", share, separator));
      EXPECT_THAT(in_file.what(), HasSubstr("at byte offset 5000 "));
      EXPECT_EQ(in_file.place().file, odd);
      const UserError in_folder =
          refused_character(options_for(folder.at("d"), "char", share, separator));
      EXPECT_THAT(in_folder.what(), HasSubstr("at byte offset 5000 "));
      EXPECT_EQ(in_folder.place().file, bad);
    }
}

TEST(UnknownCharacters, HaveTheLineOfTheirDocument) {
  const TemporaryFolder folder;
  std::string lines = "\n";
  for (int i = 0; i < 20; ++i) lines += "{\"text\": \"abc\"}\n";
  const std::string path = folder.write("d.jsonl", lines + "{\"text\": \"ab\u00e9\"}\n" + lines);
  for (const int threads : {1, 3})
    for (const char* separator : {"", "|"}) {
      const UserError error = refused_character(options_for(path, "char", 0, separator), threads);
      EXPECT_THAT(error.what(), HasSubstr("d.jsonl, line 22: in the member \"text\", "));
      EXPECT_THAT(error.what(), HasSubstr("at byte offset 2 "));
      EXPECT_EQ(error.place().file, path);
      EXPECT_EQ(error.place().line, 22);
    }
}

/// The three forms of one text: a corpus of text, its training tokens as shards and as a pair.
struct Stored {
  TemporaryFolder folder;
  Corpus text;
  std::string tokenizer = folder.at("tokenizer.json");

  Stored() {
    const std::string path = folder.write("text/t.txt", testing::english(6000));
    text = make_corpus(options_for(path, "bpe:300"));
    save_tokenizer(*text.tokenizer, tokenizer);
    const std::vector<int64_t> all = wide(text.training.tokens);
    const auto third = static_cast<int64_t>(all.size()) / 3;
    folder.write("shards/x_0.bin", llmc_shard({all.begin(), all.begin() + third}));
    folder.write("shards/x_1.bin", llmc_shard({all.begin() + third, all.end()}));
    folder.write("pair/x.bin", raw_all<uint16_t>(all));
    folder.write("pair/x.idx", megatron_index(8, 2, {static_cast<int64_t>(all.size())}, {0, 1}));
  }
};

TEST(StoredTokens, TrainOnTheSameSequencesAsTheText) {
  Stored stored;
  const SequenceLoader expected(stored.text, 32, 5);
  for (const std::string path : {"shards", "pair", "pair/x.idx", "pair/x.bin", "pair/x"}) {
    const Corpus corpus = make_corpus(options_for(stored.folder.at(path), stored.tokenizer));
    ASSERT_EQ(corpus.training.tokens, stored.text.training.tokens) << path;
    const SequenceLoader loader(corpus, 32, 5);
    BatchBuffer a, b;
    for (int64_t first = 0; first < 3 * loader.windows_per_epoch(); first += 7) {
      expected.fill(first, 7, a);
      loader.fill(first, 7, b);
      ASSERT_EQ(a.inputs, b.inputs);
      ASSERT_EQ(a.targets, b.targets);
    }
  }
}

TEST(StoredTokens, TheValidationShareCutsThemAndTheirTextIsCounted) {
  Stored stored;
  const int64_t size = stored.text.training.tokens.size();
  for (const std::string path : {"shards", "pair"})
    for (const double share : {0.1, 0.5, 0.9}) {
      const Corpus corpus =
          make_corpus(options_for(stored.folder.at(path), stored.tokenizer, share));
      EXPECT_EQ(corpus.training.tokens.size(),
                static_cast<int64_t>((1 - share) * static_cast<double>(size)));
      std::vector<int64_t> joined = wide(corpus.training.tokens);
      for (const int64_t token : wide(corpus.validation.tokens)) joined.push_back(token);
      EXPECT_EQ(joined, wide(stored.text.training.tokens));
      const std::string text = text_of(corpus, corpus.validation);
      EXPECT_EQ(corpus.validation.text_bytes, static_cast<int64_t>(text.size()));
      EXPECT_EQ(corpus.validation.scored_tokens, corpus.validation.tokens.size() - 1);
      const auto first = corpus.tokenizer->token_bytes(corpus.validation.tokens[0]).size();
      EXPECT_EQ(corpus.validation.scored_bytes, static_cast<int64_t>(text.size() - first));
    }
}

// However long a separator is, a token that stands for it stands for no text.
TEST(StoredTokens, HaveTheBytesOfTheSameTextAndJsonLines) {
  const std::string end = "<|endoftext|>";
  const TemporaryFolder folder;
  std::string text, lines;
  for (int i = 0; i < 40; ++i) {
    const std::string document = testing::english(5 + i % 3);
    text += document + end;
    lines += Json::object({{"text", document}}).dump() + "\n";
  }
  const std::string tokenizer = folder.at("tokenizer.json");
  save_tokenizer(*make_tokenizer("bpe:300", text), tokenizer);
  const Corpus of_text = make_corpus(options_for(folder.write("t.txt", text), tokenizer, 0, end));
  const Corpus of_lines =
      make_corpus(options_for(folder.write("l.jsonl", lines), tokenizer, 0, end));
  EXPECT_EQ(of_text.training.tokens, of_lines.training.tokens);
  EXPECT_EQ(of_text.training.scored_tokens, of_lines.training.scored_tokens);
  EXPECT_EQ(of_text.training.text_bytes, of_lines.training.text_bytes);
  EXPECT_EQ(of_text.training.scored_bytes, of_lines.training.scored_bytes);
  folder.write("shards/tiny_train_0.bin", llmc_shard({1}));
  folder.write("shards/tiny_val_0.bin", llmc_shard(wide(of_text.training.tokens)));
  const Corpus stored = make_corpus(options_for(folder.at("shards"), tokenizer, 0.1, ""));
  EXPECT_EQ(stored.validation.text_bytes, of_text.training.text_bytes);
}

TEST(StoredTokens, FilesNamedForValidationAreIt) {
  const TemporaryFolder folder;
  folder.write("set/tiny_train_0.bin", llmc_shard({1, 2, 3}));
  folder.write("set/tiny_val_0.bin", llmc_shard({4, 5}));
  folder.write("set/interval.bin", llmc_shard({6}));
  const Corpus corpus = make_corpus(options_for(folder.at("set"), "ids:9", 0.1));
  EXPECT_THAT(corpus.training.tokens.to_vector(), ElementsAre(6, 1, 2, 3));
  EXPECT_THAT(corpus.validation.tokens.to_vector(), ElementsAre(4, 5));
  EXPECT_EQ(ValidationWindows(corpus, 1).scored(1).bytes, 0);
  std::filesystem::remove(folder.at("set/tiny_train_0.bin"));
  std::filesystem::remove(folder.at("set/interval.bin"));
  expect_user_error([&] { make_corpus(options_for(folder.at("set"), "ids:9", 0.1)); },
                    {"nothing but validation", "tiny_val_0.bin"}, "data.path");
  EXPECT_EQ(
      make_corpus(options_for(folder.at("set/tiny_val_0.bin"), "ids:9")).training.tokens.size(), 2);
}

TEST(StoredTokens, DocumentsBeginWhereTheFormatSaysSo) {
  const TemporaryFolder folder;
  // Documents of tokens 1 and up; in shards 0 comes first, in pairs last.
  const std::vector<int64_t> shard = {0, 1, 2, 0, 3, 0, 4, 5, 6},
                             pair = {1, 2, 0, 3, 0, 4, 5, 6, 0};
  folder.write("s/a.bin", llmc_shard({shard.begin(), shard.begin() + 4}));
  folder.write("s/b.bin", llmc_shard({shard.begin() + 4, shard.end()}));
  folder.write("p/a.bin", raw_all<int32_t>(std::vector<int64_t>(pair.begin(), pair.begin() + 5)));
  folder.write("p/a.idx", megatron_index(4, 4, {3, 2}, {0, 1, 2}));
  folder.write("p/b.bin", raw_all<int32_t>(std::vector<int64_t>(pair.begin() + 5, pair.end())));
  folder.write("p/b.idx", megatron_index(4, 4, {4}, {0, 1}));
  for (const bool shards : {true, false}) {
    const DataOptions options = options_for(folder.at(shards ? "s" : "p"), "ids:7/0", 0, " 0");
    const Corpus corpus = make_corpus(options);
    const std::vector<int64_t>& tokens = shards ? shard : pair;
    const std::vector<int64_t> starts =
        shards ? std::vector<int64_t>{0, 3, 5} : std::vector<int64_t>{0, 3, 5};
    ASSERT_EQ(wide(corpus.training.tokens), tokens);
    EXPECT_TRUE(corpus.training.has_documents());
    const SequenceLoader loader(corpus, 4, 3);
    BatchBuffer batch;
    for (int64_t number = 0; number < 8; ++number) {
      loader.fill(number, 1, batch);
      const int64_t start = loader.window_start(number);
      int64_t document = start;
      for (int64_t t = 0; t < 4; ++t) {
        const auto begins = [&](int64_t p) {
          return std::count(starts.begin(), starts.end(), p) > 0;
        };
        if (begins(start + t)) document = std::max(start, start + t);
        EXPECT_EQ(batch.inputs[static_cast<size_t>(t)], tokens[static_cast<size_t>(start + t)]);
        EXPECT_EQ(batch.document_starts[static_cast<size_t>(t)], document - start);
        EXPECT_EQ(
            batch.targets[static_cast<size_t>(t)],
            begins(start + t + 1) ? kIgnoredTarget : tokens[static_cast<size_t>(start + t + 1)]);
      }
    }
    // Half of the tokens: position 4 is inside the second document.
    const Corpus cut = make_corpus(options_for(options.path, "ids:7/0", 0.5, " 0"));
    EXPECT_EQ(cut.validation.tokens.size(), 5);
    EXPECT_EQ(cut.validation.scored_tokens, 5 - 2);
    if (!shards) {
      EXPECT_THAT(cut.validation.document_starts, ElementsAre(0, 1));
      EXPECT_THAT(cut.training.document_starts, ElementsAre(0, 3));
    }
    EXPECT_FALSE(make_corpus(options_for(options.path, "ids:7")).training.has_documents());
  }
}

TEST(StoredTokens, TheTokenizerLiesBesideThem) {
  Stored stored;
  const std::string beside = stored.folder.at("shards/tokenizer.json");
  expect_user_error([&] { make_corpus(options_for(stored.folder.at("shards"), "char")); },
                    {"x_0.bin", beside, "ids:50257"}, "data.tokenizer");
  save_tokenizer(*stored.text.tokenizer, beside);
  const Corpus corpus = make_corpus(options_for(stored.folder.at("shards"), "char"));
  EXPECT_EQ(corpus.tokenizer->serialize(), stored.text.tokenizer->serialize());
}

TEST(StoredTokens, AnotherVocabularyIsRefusedBeforeTraining) {
  Stored stored;
  const std::string shard = stored.folder.at("shards/x_0.bin");
  expect_user_error(
      [&] { make_corpus(options_for(stored.folder.at("shards"), "byte")); },
      {"x_", "byte offset", "outside the vocabulary of 256 tokens of the byte tokenizer"},
      "data.path");
  expect_user_error([&] { make_corpus(options_for(stored.folder.at("pair"), "ids:256")); },
                    {"x.bin", "outside the vocabulary of 256"}, "data.path");
}

TEST(StoredTokens, OptionsWithoutEffectAndMixedFoldersAreRefused) {
  Stored stored;
  const auto& folder = stored.folder;
  const auto refused = [&](DataOptions options, std::initializer_list<std::string> parts,
                           const std::string& key) {
    expect_user_error([&] { make_corpus(options); }, parts, key);
  };
  const DataOptions shards = options_for(folder.at("shards"), stored.tokenizer);
  DataOptions options = shards;
  options.tokenizer = "bpe:300";
  refused(options, {"bpe:300", "llm.c shards", "tokenizer.json"}, "data.tokenizer");
  options = shards;
  options.encoding = "latin-1";
  refused(options, {"latin-1", "tokens already"}, "data.encoding");
  options = shards;
  options.text_field = "body";
  refused(options, {"body", "JSON-lines"}, "data.text_field");
  options = shards;
  options.document_separator = "\n\n";
  refused(options, {"<|endoftext|>"}, "data.document_separator");
  refused(options_for(folder.at("shards"), "ids:300", 0, " 0"), {"ids:50257/50256"},
          "data.document_separator");
  refused(options_for(folder.at("text/t.txt"), "ids:300"), {"has no effect on text"},
          "data.tokenizer");
  refused(options_for(folder.path(), "byte"), {"holds", "t.txt", "name one of the files"},
          "data.path");
  refused(options_for(folder.write("raw/train.bin", "abcdefgh"), "byte"),
          {"train.bin", "25185", "the byte tokenizer"}, "data.path");
  refused(options_for(folder.write("raw/odd.bin", "abcde"), "ids:65536"),
          {"odd.bin", "truncated", "2 bytes each", "has 5"}, "data.path");
  refused(options_for(folder.write("lone/x.idx", megatron_index(8, 2, {}, {0})), "byte"),
          {"x.bin", "is missing"}, "data.path");
}

/// nanoGPT's files have no header. What begins as a file of llm.c is never read as one of them.
TEST(StoredTokens, MayBeNothingButTokens) {
  Stored stored;
  const std::vector<int64_t> all = wide(stored.text.training.tokens);
  stored.folder.write("nano/train.bin", raw_all<uint16_t>(all));
  stored.folder.write("nano/val.bin", raw_all<uint16_t>(std::vector<int64_t>{5, 4, 3}));
  const Corpus corpus = make_corpus(options_for(stored.folder.at("nano"), stored.tokenizer, 0.1));
  EXPECT_EQ(corpus.training.tokens, stored.text.training.tokens);
  EXPECT_THAT(corpus.validation.tokens.to_vector(), ElementsAre(5, 4, 3));
  const std::string shard = testing::llmc_header(20240522, 1, 0) + raw_all<uint16_t>(all);
  expect_user_error(
      [&] { make_corpus(options_for(stored.folder.write("q.bin", shard), stored.tokenizer)); },
      {"multiple-choice"}, "data.path");
  const std::string unknown = testing::llmc_header(7, 1, 0) + raw_all<uint16_t>(all);
  expect_user_error(
      [&] { make_corpus(options_for(stored.folder.write("u.bin", unknown), stored.tokenizer)); },
      {"magic number is 7"}, "data.path");
}

TEST(Chat, MessagesBecomeTextInChatMl) {
  const TemporaryFolder folder;
  const std::string path =
      folder.write("c.jsonl",
                   "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\\nyou\", \"id\": 3}, "
                   "{\"role\": \"assistant\", \"content\": \"\"}]}\n{\"messages\": []}\n"
                   "{\"messages\": \"plain\"}\n");
  DataOptions options = options_for(path, "byte", 0, "|");
  options.text_field = "messages";
  const Corpus corpus = make_corpus(options);
  EXPECT_EQ(text_of(corpus, corpus.training),
            "<|im_start|>user\nHi\nyou<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n|plain|");
}

TEST(Chat, WrongMessagesAreNamed) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& list, std::initializer_list<std::string> parts) {
    DataOptions options = options_for(
        folder.write("c.jsonl", "{\"messages\": []}\n{\"messages\": " + list + "}"), "byte");
    options.text_field = "messages";
    expect_user_error([&] { make_corpus(options); }, {"c.jsonl, line 2"}, "data.path");
    expect_user_error([&] { make_corpus(options); }, parts, "data.path");
  };
  const std::string good = "{\"role\": \"user\", \"content\": \"x\"}";
  refused("[" + good + ", 7]", {"message 2", "no JSON object"});
  refused("[{\"content\": \"x\"}]", {"message 1", "no member \"role\""});
  refused("[{\"role\": \"user\"}]", {"message 1", "no member \"content\""});
  refused("[{\"role\": \"user\", \"content\": [\"x\"]}]", {"\"content\" that is no string"});
  refused("[{\"role\": \"a\\nb\", \"content\": \"x\"}]", {"\"role\" that is not one line"});
  refused("[{\"role\": \"\", \"content\": \"x\"}]", {"\"role\" that is not one line"});
  refused("[{\"role\": \"user\", \"content\": \"<|im_end|>\"}]", {"spells <|im_end|>"});
  expect_user_error(
      [&] { make_corpus(options_for(folder.write("d.jsonl", "{\"messages\": []}"), "byte")); },
      {"did you mean data.text_field = \"messages\""}, "data.text_field");
}

TEST(IdsTokenizer, TextIsNumbers) {
  const auto tokenizer = make_tokenizer("ids:300/299", "");
  EXPECT_EQ(tokenizer->vocabulary_size(), 300);
  EXPECT_EQ(tokenizer->end_of_document(), 299);
  EXPECT_THAT(tokenizer->encode(" 0 17 299"), ElementsAre(0, 17, 299));
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0, 17, 299}), " 0 17 299");
  EXPECT_EQ(parse_tokenizer(tokenizer->serialize(), "t")->serialize(), tokenizer->serialize());
  EXPECT_FALSE(make_tokenizer("ids:5", "")->end_of_document());
  for (const char* text : {"1", " 300", " 01", " 1 ", " -1", " x", "  1", " 99999999999999999999"})
    expect_user_error([&] { tokenizer->encode(text); }, {"at byte", "0 to 299"}, "");
  for (const char* spec :
       {"ids:", "ids:0", "ids:-3", "ids:5/5", "ids:5/x", "ids:x", "ids:99999999"})
    expect_user_error([&] { make_tokenizer(spec, ""); }, {}, "data.tokenizer");
}

}  // namespace
}  // namespace strait
