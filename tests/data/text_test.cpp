#include "strait/data/text.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <set>

#include "strait/data/corpus.h"
#include "strait/data/gzip.h"
#include "strait/tokenizer/utf8.h"
#include "tests/data/expect_user_error.h"
#include "tests/data/sample_texts.h"
#include "tests/data/temporary_folder.h"
#include "tests/pace.h"
#include "tests/sanitized.h"
#include "tests/unprivileged.h"

namespace strait {
namespace {

using testing::expect_user_error;
using testing::TemporaryFolder;

constexpr int64_t kMost = int64_t{1} << 30;

/// One gzip member; `extra` is the header's extra field, as dictzip files have one.
std::string gzip(const std::string& text, std::string extra = "") {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  gz_header header{};
  header.extra = reinterpret_cast<Bytef*>(extra.data());
  header.extra_len = static_cast<uInt>(extra.size());
  if (!extra.empty()) deflateSetHeader(&stream, &header);
  std::string packed(deflateBound(&stream, text.size()) + extra.size() + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

DataOptions options_for(const std::string& path, const std::string& encoding = "utf-8") {
  DataOptions options;
  options.path = path;
  options.encoding = encoding;
  return options;
}

std::string text_of(const DataOptions& options) { return open_data(options).text.bytes; }

TEST(Utf8, LengthsAgreeWithTheDefinitionForAllTwoByteBeginnings) {
  // Independent definition: a sequence is valid when it is what append_utf8 writes for some scalar
  // value.
  std::vector<bool> begins(65536);
  for (char32_t c = 0; c <= 0x10ffff; ++c) {
    if (c >= 0xd800 && c <= 0xdfff) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(utf8_sequence_length(text, 0), text.size()) << static_cast<uint32_t>(c);
    ASSERT_EQ(utf8_code_point(text, 0, text.size()), c);
    if (text.size() > 1)
      begins[static_cast<uint8_t>(text[0]) << 8 | static_cast<uint8_t>(text[1])] = true;
  }
  for (int first = 0x80; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second), '\xbf',
                                '\xbf'};
      ASSERT_EQ(utf8_sequence_length(text, 0) != 0, begins[first << 8 | second])
          << first << " " << second;
    }
  }
}

TEST(Utf8, FirstInvalidIsFoundAtEveryAlignment) {
  for (size_t before = 0; before < 40; ++before) {
    for (const std::string& fill :
         {std::string("a"), std::string("é"), std::string("\U0001F600")}) {
      std::string text;
      while (text.size() < before) text += fill;
      EXPECT_EQ(first_invalid_utf8(text + "\xff" + "tail and more"), text.size());
      EXPECT_EQ(first_invalid_utf8(text + "tail and more"), text.size() + 13);
      EXPECT_EQ(first_invalid_utf8(text + "\xe2\x82"), text.size());
    }
  }
}

TEST(Gzip, MembersExtraFieldsAndPaddingAreRead) {
  const std::string text = testing::english(20000);
  ASSERT_GT(text.size(), 90000u);
  EXPECT_EQ(gunzip(gzip(text), "f", kMost), text);
  EXPECT_EQ(gunzip(gzip("one ") + gzip("") + gzip("two"), "f", kMost), "one two");
  EXPECT_EQ(
      gunzip(gzip(text, "RA\x06\x00\x01\x00\x01\x00\x02\x00") + std::string(512, '\0'), "f", kMost),
      text);
  EXPECT_EQ(gunzip(gzip(std::string(3 << 20, 'z')), "f", kMost), std::string(3 << 20, 'z'));
}

// A quarter of a megabyte was zeroed for each.
TEST(Gzip, ManySmallMembersCostWhatTheyHold) {
  constexpr int kMembers = 100'000;
  const std::string member = gzip("x");
  std::string packed;
  for (int i = 0; i < kMembers; ++i) packed += member;
  const double began = test::thread_processor_seconds();
  EXPECT_EQ(gunzip(packed, "f", kMost), std::string(kMembers, 'x'));
  EXPECT_LT(test::thread_processor_seconds() - began, 0.15 * test::kSlowdown);
}

TEST(Gzip, EveryTruncationAndEveryFlippedByteIsSeen) {
  const std::string text = testing::english(60);
  const std::string packed = gzip(text);
  for (size_t size = 2; size < packed.size(); ++size)
    expect_user_error([&] { gunzip(std::string_view(packed).substr(0, size), "short.gz", kMost); },
                      {"short.gz", "at byte " + std::to_string(size), "truncated"});
  int refused = 0;
  for (size_t i = 10; i < packed.size(); ++i) {  // bytes 2 to 9 of the header may change unnoticed,
    if (i == packed.size() - 9) continue;        // and so may the padding bits before the checksum
    std::string damaged = packed;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    expect_user_error([&] { gunzip(damaged, "bad.gz", kMost); }, {"bad.gz", "at byte "});
    ++refused;
  }
  EXPECT_GT(refused, 100);
}

TEST(Gzip, OtherDataBehindTheLastMemberIsRefusedWithItsOffset) {
  const std::string packed = gzip("text");
  expect_user_error([&] { gunzip(packed + "garbage", "f.gz", kMost); },
                    {"f.gz", "at byte " + std::to_string(packed.size()), "not gzip"});
  expect_user_error([&] { gunzip(packed + std::string(3, '\0') + "x", "f.gz", kMost); },
                    {"at byte " + std::to_string(packed.size() + 3)});
}

TEST(Text, ReadsAFileInEachEncoding) {
  const TemporaryFolder folder;
  EXPECT_EQ(text_of(options_for(folder.write("utf8", testing::many_scripts()))),
            testing::many_scripts());
  EXPECT_EQ(text_of(options_for(folder.write("bom", "\xef\xbb\xbfhello"))), "hello");
  const std::string path = folder.write("single", "a\x80\x81\x93\x9f\xe9\xff");
  EXPECT_EQ(text_of(options_for(path, "windows-1252")), "a€\u0081“Ÿéÿ");
  EXPECT_EQ(text_of(options_for(path, "latin-1")), "a\u0080\u0081\u0093\u009féÿ");
}

TEST(Text, SingleByteEncodingsAcceptEveryByteAndGiveDistinctCharacters) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  for (const char* encoding : {"windows-1252", "latin-1"}) {
    const std::string text = decode_text(all, encoding, "f");
    ASSERT_EQ(first_invalid_utf8(text), text.size());
    std::set<char32_t> characters;
    for (size_t i = 0; i < text.size();) {
      const size_t length = utf8_sequence_length(text, i);
      characters.insert(utf8_code_point(text, i, length));
      i += length;
    }
    EXPECT_EQ(characters.size(), 256u) << encoding;
  }
}

TEST(Text, GzipIsKnownByContentNotByName) {
  const TemporaryFolder folder;
  EXPECT_EQ(text_of(options_for(folder.write("plain.txt", gzip("caf\xc3\xa9")))), "café");
  EXPECT_EQ(text_of(options_for(folder.write("dict.dz", gzip("caf\xe9", "RA\x02\x00\x01\x00")),
                                "latin-1")),
            "café");
  EXPECT_EQ(text_of(options_for(folder.write("not.gz", "plain"))), "plain");
}

TEST(Text, AFolderIsItsFilesInOrderOfTheirPaths) {
  const TemporaryFolder folder;
  folder.write("b.txt", "B");
  folder.write("a/z.txt", "Z");
  folder.write("a/deep/er/x.gz", gzip("X"));
  folder.write(".hidden", "no");
  folder.write("a/.git/config", "no");
  folder.write("empty", "");
  std::filesystem::create_symlink(folder.path(), folder.at(".loop"));
  std::filesystem::create_symlink("../b.txt", folder.at("a/link.txt"));
  DataOptions options = options_for(folder.path());
  EXPECT_EQ(text_of(options), "XBZB");
  options.document_separator = "|";
  EXPECT_EQ(text_of(options), "X|B|Z|B|");
  folder.write("a/z.txt", "Z|");
  EXPECT_EQ(text_of(options), "X|B|Z|B|");
}

TEST(Text, WhatAFolderHoldsBesideFilesIsRefusedNotPassedOver) {
  const TemporaryFolder folder;
  folder.write("a.txt", "A");
  folder.write("more/b.txt", "B");
  const std::string odd = folder.at("more/odd");
  const auto refused = [&](const std::string& why) {
    expect_user_error([&] { text_of(options_for(folder.path())); }, {odd, why}, "data.path");
    std::filesystem::remove(odd);
  };
  std::filesystem::create_symlink(folder.path(), odd);
  refused("link to a folder");
  std::filesystem::create_symlink("none", odd);
  refused("link to nothing");
  ASSERT_EQ(::mkfifo(odd.c_str(), 0600), 0);
  refused("FIFO");
  EXPECT_EQ(text_of(options_for(folder.path())), "AB");
}

/// Message and key of an error that ends with 6.
void expect_forbidden(const DataOptions& options, const std::string& path) {
  try {
    make_corpus(options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const InputOutputError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(path));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("Permission denied"));
    EXPECT_THAT(error.what(), ::testing::Not(::testing::HasSubstr("filesystem error")));
    EXPECT_EQ(error.place().key, "data.path");
    EXPECT_EQ(error.place().file, path);
  }
}

TEST(Text, WhatTheSystemForbidsIsNoFaultOfTheUser) {
  const TemporaryFolder folder;
  for (const char* name : {"in/a.txt", "in/a.jsonl", "in/a.bin"}) {
    const std::string path = folder.write(name, "{\"text\": \"a\"}\n");
    DataOptions options = options_for(path);
    if (path.ends_with(".bin")) options.tokenizer = "ids:50257";
    {
      const test::Forbidden file(path);
      expect_forbidden(options, path);
    }
    const test::Forbidden parent(folder.at("in"));
    expect_forbidden(options, path);
  }
  for (const mode_t mode : {0000, 0300}) {
    const test::Forbidden itself(folder.at("in"), mode);
    expect_forbidden(options_for(folder.at("in")), folder.at("in"));
  }
}

TEST(Text, AnUnknownCharacterIsNamedByItsPlaceInTheFile) {
  const TemporaryFolder folder;
  const std::shared_ptr<const Tokenizer> narrow = make_tokenizer("char", "abé\n");
  const auto place_of = [&](const std::string& contents, const std::string& encoding) {
    if (encoding == "utf-8")
      folder.write("in/1.txt",
                   "\xef\xbb\xbf"
                   "ab\n");
    folder.write("in/2.txt", contents);
    DataOptions options = options_for(folder.at("in"), encoding);
    try {
      make_corpus(options, narrow);
    } catch (const TextError& error) {
      EXPECT_EQ(error.place().file, folder.at("in/2.txt"));
      return error.offset();
    }
    return size_t{0};
  };
  EXPECT_EQ(place_of("ab\nQ", "utf-8"), 3u);
  EXPECT_EQ(place_of("\xef\xbb\xbf"
                     "ab\nQ",
                     "utf-8"),
            6u);
  EXPECT_EQ(place_of("\xc3\xa9Q", "utf-8"), 2u);
  std::filesystem::remove(folder.at("in/1.txt"));
  EXPECT_EQ(place_of("ab\xe9\xe9Q", "latin-1"), 4u);
  EXPECT_EQ(place_of("ab\xe9\xe9Q", "windows-1252"), 4u);
}

TEST(Text, BadInputIsRefusedWithPlaceAndAdvice) {
  const TemporaryFolder folder;
  const std::string bad = folder.write("bad.txt", "0123456789caf\xe9 noir");
  expect_user_error([&] { text_of(options_for(bad)); },
                    {bad, "byte 0xe9", "byte offset 13", "windows-1252"}, "data.encoding");
  expect_user_error([&] { text_of(options_for(folder.write("p.gz", gzip("ab\xff")))); },
                    {"byte offset 2 of the unpacked text"}, "data.encoding");
  expect_user_error(
      [&] {
        text_of(options_for(folder.write("16", std::string("\xff\xfe"
                                                           "a\0",
                                                           4))));
      },
      {"UTF-16"}, "data.encoding");
  expect_user_error([&] { text_of(options_for(bad, "utf8")); }, {"utf8", "did you mean \"utf-8\""},
                    "data.encoding");
  expect_user_error([&] { text_of(options_for(folder.at("bed.txt"))); },
                    {"bed.txt", "does not exist", "did you mean " + bad}, "data.path");
  const std::string link = folder.at("ba.txt");
  std::filesystem::create_symlink("ba.txt", link);
  expect_user_error([&] { text_of(options_for(link)); },
                    {link + " does not exist", "did you mean " + bad}, "data.path");
  std::filesystem::remove(link);
  expect_user_error([&] { text_of(options_for("")); }, {"data.path is empty"}, "data.path");
  expect_user_error([&] { text_of(options_for(folder.write("nil", ""))); }, {"nil", "empty"},
                    "data.path");
  expect_user_error([&] { text_of(options_for(folder.write("nil.gz", gzip("")))); }, {"empty"},
                    "data.path");
  std::filesystem::create_directory(folder.at("bare"));
  expect_user_error([&] { text_of(options_for(folder.at("bare"))); }, {"no files"}, "data.path");
}

TEST(Text, ABombIsCutAtTheLimit) {
  const std::string packed = gzip(std::string(3 << 20, 'z'));
  EXPECT_LT(packed.size(), 10000u);
  EXPECT_EQ(gunzip(packed, "f", 3 << 20).size(), size_t{3 << 20});
  expect_user_error([&] { gunzip(packed, "bomb.gz", (3 << 20) - 1); },
                    {"bomb.gz", "unpack to more than 3145727"});
}

}  // namespace
}  // namespace strait
