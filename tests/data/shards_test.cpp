// llm.c shards and Megatron pairs: read against independent writers, written against independent
// bytes, and every damage named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/data/shards/llmc_shard.h"
#include "strait/data/shards/megatron.h"
#include "tests/data/expect_user_error.h"
#include "tests/data/temporary_folder.h"
#include "tests/data/token_files.h"

namespace strait {
namespace {

using ::testing::ElementsAre;
using testing::expect_user_error;
using testing::llmc_header;
using testing::llmc_shard;
using testing::llmc_shard_32;
using testing::megatron_index;
using testing::raw_all;
using testing::TemporaryFolder;

std::vector<int32_t> tokens_of(TokenSegment segment) {
  Tokens tokens;
  tokens.append(std::move(segment));
  return tokens.to_vector();
}

TEST(LlmcShard, BothVersionsAreRead) {
  const TemporaryFolder folder;
  const auto gpt2 = open_llmc_shard(folder.write("a.bin", llmc_shard({0, 50256, 65535, 7})));
  EXPECT_EQ(gpt2.type, TokenType::kUint16);
  EXPECT_THAT(tokens_of(gpt2), ElementsAre(0, 50256, 65535, 7));
  const auto llama = open_llmc_shard(folder.write("b.bin", llmc_shard_32({128000, 5, 128255})));
  EXPECT_EQ(llama.type, TokenType::kUint32);
  EXPECT_THAT(tokens_of(llama), ElementsAre(128000, 5, 128255));
  EXPECT_EQ(open_llmc_shard(folder.write("c.bin", llmc_shard({}))).count, 0);
}

TEST(LlmcShard, TheWriterMakesTheSameBytes) {
  const TemporaryFolder folder;
  const std::vector<int64_t> tokens = {3, 50256, 1, 2};
  const std::vector<int32_t> narrow(tokens.begin(), tokens.end());
  for (const bool wide : {false, true}) {
    const std::string path = folder.at(wide ? "w.bin" : "n.bin");
    LlmcWriter writer(path, wide ? TokenType::kUint32 : TokenType::kUint16);
    writer.append(std::span(narrow).first(1));
    writer.append(std::span(narrow).subspan(1));
    EXPECT_FALSE(std::filesystem::exists(path)) << "visible before it is whole";
    writer.finish();
    EXPECT_EQ(read_file(path), wide ? llmc_shard_32(tokens) : llmc_shard(tokens));
  }
  { LlmcWriter unfinished(folder.at("x.bin"), TokenType::kUint16); }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    EXPECT_TRUE(entry.path().extension() == ".bin" && entry.path().stem() != "x") << entry.path();
  LlmcWriter small(folder.at("y.bin"), TokenType::kUint16);
  const std::vector<int32_t> large = {65536};
  EXPECT_THROW(small.append(large), InternalError);
}

TEST(LlmcShard, DamageIsNamed) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& bytes, std::initializer_list<std::string> parts) {
    const std::string path = folder.write("bad.bin", bytes);
    expect_user_error([&] { open_llmc_shard(path); }, {path}, "data.path");
    expect_user_error([&] { open_llmc_shard(path); }, parts, "data.path");
  };
  const std::string good = llmc_shard({1, 2, 3});
  refused(good.substr(0, 1029), {"truncated", "3 tokens of 2 bytes", "1030 bytes", "has 1029"});
  refused(good + "x", {"longer than its header says", "1030", "1031"});
  refused(good.substr(0, 1000), {"truncated", "1024", "1000"});
  refused("", {"truncated"});
  refused(llmc_header(20240520, 2, 0), {"version 2", "1 (16 bits", "7 (32 bits"});
  refused(llmc_header(20240801, 1, 0), {"version 1"});
  refused(llmc_header(1, 1, 0), {"magic number is 1", "20240520", "20240801"});
  refused(llmc_header(20240522, 1, 0), {"multiple-choice"});
  refused(llmc_header(20240326, 3, 0), {"model of llm.c"});
  refused(llmc_header(20240520, 1, -1), {"negative", "-1"});
  refused(llmc_header(20240520, 1, 2147483647), {"truncated", "4294968318"});
  expect_user_error([&] { open_llmc_shard(folder.at("none.bin")); }, {"none.bin", "No such file"},
                    "data.path");
  expect_user_error([&] { open_llmc_shard(folder.path()); }, {"is a folder, not a file"},
                    "data.path");
}

/// Writes the pair and returns what stands before the dots.
std::string pair(const TemporaryFolder& folder, const std::string& index,
                 const std::string& tokens) {
  folder.write("pair.idx", index);
  folder.write("pair.bin", tokens);
  return folder.at("pair");
}

TEST(Megatron, EveryIntegerTypeIsRead) {
  const TemporaryFolder folder;
  const std::vector<int64_t> tokens = {0, 1, 100, 127, 5, 6};
  const auto read = [&](int code, int width, const std::string& bytes) {
    const MegatronPair opened =
        open_megatron(pair(folder, megatron_index(code, width, {2, 3, 1}, {0, 2, 3}), bytes));
    EXPECT_THAT(opened.document_starts, ElementsAre(0, 5)) << code;
    EXPECT_THAT(tokens_of(opened.tokens), ElementsAre(0, 1, 100, 127, 5, 6)) << code;
  };
  read(1, 1, raw_all<uint8_t>(tokens));
  read(2, 1, raw_all<int8_t>(tokens));
  read(3, 2, raw_all<int16_t>(tokens));
  read(4, 4, raw_all<int32_t>(tokens));
  read(5, 8, raw_all<int64_t>(tokens));
  read(8, 2, raw_all<uint16_t>(tokens));
}

TEST(Megatron, EmptySequencesAndDocumentsMakeNoStart) {
  const TemporaryFolder folder;
  const std::string tokens = raw_all<uint16_t>(std::vector<int64_t>{1, 2, 3});
  const auto starts = [&](std::vector<int64_t> lengths, std::vector<int64_t> documents) {
    return open_megatron(pair(folder, megatron_index(8, 2, lengths, documents), tokens))
        .document_starts;
  };
  EXPECT_THAT(starts({0, 1, 0, 2, 0}, {0, 1, 1, 3, 4, 5}), ElementsAre(0, 1));
  EXPECT_THAT(starts({3}, {0, 1}), ElementsAre(0));
  EXPECT_EQ(open_megatron(pair(folder, megatron_index(8, 2, {}, {0}), "")).tokens.count, 0);
}

TEST(Megatron, TheWriterMakesTheSameBytes) {
  const TemporaryFolder folder;
  const std::vector<int64_t> tokens = {9, 8, 7, 6};
  const std::vector<int32_t> narrow(tokens.begin(), tokens.end());
  for (const auto& [type, code, width] :
       {std::tuple(TokenType::kUint16, 8, 2), std::tuple(TokenType::kInt32, 4, 4)}) {
    MegatronWriter writer(folder.at("out"), type);
    writer.begin_document();
    writer.append(std::span(narrow).first(1));
    writer.append(std::span(narrow).subspan(1, 2));
    writer.begin_document();
    writer.append(std::span(narrow).subspan(3));
    writer.finish();
    EXPECT_EQ(read_file(folder.at("out.idx")), megatron_index(code, width, {3, 1}, {0, 1, 2}));
    EXPECT_EQ(read_file(folder.at("out.bin")),
              width == 2 ? raw_all<uint16_t>(tokens) : raw_all<int32_t>(tokens));
  }
}

TEST(Megatron, DamageIsNamed) {
  const TemporaryFolder folder;
  const std::string good = megatron_index(8, 2, {2, 1}, {0, 1, 2}), tokens = "abcdef";
  const auto refused = [&](const std::string& index, const std::string& data,
                           std::initializer_list<std::string> parts) {
    const std::string prefix = pair(folder, index, data);
    expect_user_error([&] { open_megatron(prefix); }, {prefix}, "data.path");
    expect_user_error([&] { open_megatron(prefix); }, parts, "data.path");
  };
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string changed = good;
    return changed.replace(at, bytes.size(), bytes);
  };
  EXPECT_EQ(tokens_of(open_megatron(pair(folder, good, tokens)).tokens).size(), 3u);
  for (size_t size = 0; size < good.size(); ++size)
    refused(good.substr(0, size), tokens, {"pair.idx", size == 0 ? "MMIDIDX" : "truncated"});
  refused(good + "xx", tokens, {"a mode for each sequence"});
  refused(good + "x", tokens, {"need 82 bytes, the file has 83"});
  refused("MMIDIDY" + good.substr(7), tokens, {"does not begin with MMIDIDX"});
  refused(with(9, "\2"), tokens, {"at byte 9", "version 2"});
  refused(with(17, "\7"), tokens, {"at byte 17", "7 (float32) holds no tokens"});
  refused(with(17, "\11"), tokens, {"type 9 is not known"});
  refused(with(18, std::string(8, '\xff')), tokens, {"truncated"});
  refused(with(26, std::string("\0\0\0\0\0\0\0\x20", 8)), tokens, {"truncated"});
  refused(with(34, std::string("\xff\xff\xff\xff", 4)), tokens, {"at byte 34", "length -1"});
  refused(with(50, "\5"), tokens, {"at byte 50", "sequence 1 begins at byte 5", "end at byte 4"});
  refused(with(58, "\1"), tokens, {"at byte 58", "border 0 is sequence 1"});
  refused(with(66, "\3"), tokens, {"at byte 66", "border 1 is sequence 3"});
  refused(with(74, "\1"), tokens, {"at byte 74", "border 2 is sequence 1"});
  refused(good, "abcde", {"pair.bin: truncated", "3 tokens of 2 bytes", "6 bytes, the file has 5"});
  refused(good, "abcdefgh", {"pair.bin: longer than its index says"});
  std::filesystem::remove(folder.at("pair.bin"));
  expect_user_error([&] { open_megatron(folder.at("pair")); },
                    {"pair.bin", "is missing", "pair.idx"}, "data.path");
}

TEST(Tokens, ReadAcrossSegmentsAndParts) {
  const TemporaryFolder folder;
  Tokens tokens(std::vector<int32_t>{0, 1, 2});
  tokens.append(open_llmc_shard(folder.write("a.bin", llmc_shard({3, 4}))));
  tokens.append(open_llmc_shard(folder.write("empty.bin", llmc_shard({}))));
  tokens.append(open_llmc_shard(folder.write("b.bin", llmc_shard_32({5, 6, 7, 8}))));
  ASSERT_EQ(tokens.size(), 9);
  for (int64_t begin = 0; begin <= 9; ++begin)
    for (int64_t count = 0; begin + count <= 9; ++count) {
      std::vector<int32_t> read(static_cast<size_t>(count));
      tokens.read(begin, read);
      const std::vector<int32_t> part = tokens.part(begin, count).to_vector();
      EXPECT_EQ(part, read);
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(read[static_cast<size_t>(i)], begin + i);
    }
  EXPECT_THROW(tokens.part(3, 7), InternalError);
  std::vector<int32_t> beyond(1);
  EXPECT_THROW(tokens.read(9, beyond), InternalError);
}

TEST(Tokens, OneOutsideTheVocabularyIsNamedWithItsPlace) {
  const TemporaryFolder folder;
  const std::string shard = folder.write("s.bin", llmc_shard({1, 2, 256, 3}));
  Tokens tokens(std::vector<int32_t>{9, 9});
  tokens.append(open_llmc_shard(shard));
  tokens.set_vocabulary(256, "the byte tokenizer");
  EXPECT_EQ(tokens[3], 2);
  const std::initializer_list<std::string> parts = {shard, "token 256", "byte offset 1028",
                                                    "256 tokens of the byte tokenizer"};
  expect_user_error([&] { tokens[4]; }, parts, "data.path");
  expect_user_error([&] { tokens.check_samples(100); }, parts, "data.path");
  expect_user_error([&] { tokens.part(3, 3)[1]; }, parts, "data.path");
  EXPECT_EQ(tokens[5], 3);
  // Negative and larger than 32 bits: what is named is what the file holds.
  const auto wide = [&](int code, int width, const std::string& bytes) {
    Tokens held;
    held.append(
        open_megatron(pair(folder, megatron_index(code, width, {2}, {0, 1}), bytes)).tokens);
    held.set_vocabulary(1000, "t");
    return held;
  };
  const std::vector<int64_t> values = {5, -2}, huge = {5, int64_t{1} << 32};
  expect_user_error([&] { wide(2, 1, raw_all<int8_t>(values)).to_vector(); },
                    {"token -2 ", "offset 1 "}, "data.path");
  expect_user_error([&] { wide(4, 4, raw_all<int32_t>(values)).to_vector(); },
                    {"token -2 ", "offset 4 "}, "data.path");
  expect_user_error([&] { wide(5, 8, raw_all<int64_t>(huge)).to_vector(); },
                    {"token 4294967296 ", "offset 8 "}, "data.path");
}

TEST(Tokens, SamplesReachTheLastTokenOfALongFile) {
  std::vector<int32_t> many(1 << 19, 7);
  many.back() = 300;
  Tokens tokens(std::move(many));
  tokens.set_vocabulary(256, "t");
  expect_user_error([&] { tokens.check_samples(1 << 17); }, {"token 300"}, "data.path");
}

}  // namespace
}  // namespace strait
