// JSON, random streams and files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/json.h"
#include "strait/base/random.h"

namespace strait {
namespace {

TEST(Json, WritesAndReadsBackWhatItWrote) {
  const std::string text =
      R"({"a": [1, -2, 2.5, true, null], "b": {"c": "x\n\"\\\u0001"}, "d": 1e-300})";
  const Json parsed = Json::parse(text, "test");
  EXPECT_EQ(Json::parse(parsed.dump(), "again").dump(), parsed.dump());
  EXPECT_EQ(Json::parse(parsed.dump(2), "indented").dump(), parsed.dump());
  EXPECT_EQ(parsed.at("a").as_array()[1].as_integer(), -2);
  EXPECT_EQ(parsed.at("b").at("c").as_string(), std::string("x\n\"\\\x01"));
  EXPECT_EQ(parsed.at("d").as_number(), 1e-300);
}

TEST(Json, NumbersThatAreNotFiniteBecomeNullAndBrokenUtf8IsReplaced) {
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(std::numeric_limits<double>::infinity()).dump(), "null");
  EXPECT_EQ(Json(std::string("a\xff")).dump(), "\"a\xef\xbf\xbd\"");
}

TEST(Json, MalformedTextIsRefusedByName) {
  const std::string zero("{}\0{", 4);
  for (const std::string& text :
       {std::string("{"), std::string("{\"a\": 1, \"a\": 2}"), std::string("[1,]"), zero,
        std::string(5000, '['), std::string("\"\xff\"")}) {
    try {
      Json::parse(text, "some.json");
      ADD_FAILURE() << text.substr(0, 20);
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("some.json"));
    }
  }
}

TEST(Json, ManyMembersParseInLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 100000; ++i)
    text += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i);
  EXPECT_EQ(Json::parse(text + "}", "many").size(), 100000u);
}

TEST(Random, PermutationsAreBijectionsAndStreamsDifferByPurpose) {
  for (const uint64_t size : {1u, 2u, 3u, 17u, 1000u, 4097u}) {
    const Permutation permutation(RandomStream(5, "test"), size);
    std::set<uint64_t> images;
    for (uint64_t i = 0; i < size; ++i) images.insert(permutation(i));
    EXPECT_EQ(images.size(), size);
    EXPECT_LT(*images.rbegin(), size);
  }
  EXPECT_NE(RandomStream(5, "a").bits(0), RandomStream(5, "b").bits(0));
  EXPECT_NE(RandomStream(5, "a", 1).bits(0), RandomStream(5, "a", 0, 1).bits(0));
}

TEST(Random, NormalsHaveTheirMoments) {
  const RandomStream stream(1, "normal");
  constexpr int kCount = 100000;
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const double value = stream.normal(i);
    sum += value;
    squares += value * value;
  }
  // Five standard errors: 1 / sqrt(n) for the mean, sqrt(2 / n) for the variance.
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0 / kCount));
}

TEST(Files, AtomicWritesReplaceAndFailuresLeaveTheOldFile) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / ("strait-base-" + std::to_string(::getpid())))
          .string();
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/file";
  write_file_atomically(path, "old");
  write_file_atomically(path, "new");
  EXPECT_EQ(read_file(path), "new");
  EXPECT_THROW(write_file_atomically(path + "/below", "x"), InputOutputError);
  EXPECT_THROW(read_file(folder), UserError);
  EXPECT_THROW(read_file(folder + "/none"), UserError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  std::filesystem::remove_all(folder);
}

TEST(Errors, TheNearestChoiceHasTheSmallestDistance) {
  EXPECT_EQ(nearest_choice("zero4", std::vector<std::string>{"ddp", "zero3", "mics"}), "zero3");
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
}

/// By the definition: delete the last letter of either, or keep or change it.
int64_t plain_distance(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return static_cast<int64_t>(a.size() + b.size());
  const std::string shorter_a = a.substr(0, a.size() - 1), shorter_b = b.substr(0, b.size() - 1);
  return std::min({plain_distance(shorter_a, b) + 1, plain_distance(a, shorter_b) + 1,
                   plain_distance(shorter_a, shorter_b) + (a.back() == b.back() ? 0 : 1)});
}

TEST(Errors, DistancesAreThoseOfTheDefinitionBelowTheLimit) {
  std::mt19937 random(5);
  const auto word = [&] {
    std::string letters(random() % 7, 'a');
    for (char& letter : letters) letter = static_cast<char>('a' + random() % 3);
    return letters;
  };
  for (int trial = 0; trial < 400; ++trial) {
    const std::string a = word(), b = word();
    const int64_t plain = plain_distance(a, b);
    EXPECT_EQ(edit_distance(a, b), plain) << a << ' ' << b;
    for (int64_t limit = 0; limit < 8; ++limit) {
      const int64_t limited = edit_distance(a, b, limit);
      if (plain < limit) {
        EXPECT_EQ(limited, plain) << a << ' ' << b << ' ' << limit;
      } else {
        EXPECT_GE(limited, limit) << a << ' ' << b;
      }
    }
    const std::vector<std::string> choices = {word(), word(), word(), word()};
    const auto nearest = std::min_element(
        choices.begin(), choices.end(), [&](const std::string& one, const std::string& other) {
          return plain_distance(a, one) < plain_distance(a, other);
        });
    EXPECT_EQ(nearest_choice(a, choices), *nearest);
  }
}

}  // namespace
}  // namespace strait
