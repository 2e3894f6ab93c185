// Errors about keys name where the run file writes them; those about data name the data too.
#include "strait/config/place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/config/parse.h"

namespace strait {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

ErrorPlace place_of(const char* key, std::optional<std::string> file = std::nullopt,
                    std::optional<int64_t> line = std::nullopt) {
  ErrorPlace place;
  place.key = key;
  place.file = std::move(file);
  place.line = line;
  return place;
}

UserError placed(const ErrorPlace& place, const std::string& message = "wrong") {
  const strait::Run run =
      parse_run("seed = 3\n[data]\npath = \"a.txt\"\ntokenizer = \"byte\"\n", "run.toml");
  try {
    with_place(run, [&]() -> int { throw UserError(message, place); });
  } catch (const UserError& error) {
    return error;
  }
  return UserError("accepted");
}

void expect_in_run_file(const UserError& error, const char* key, int64_t line) {
  EXPECT_EQ(error.place().file, "run.toml");
  EXPECT_EQ(error.place().line, line);
  EXPECT_EQ(error.place().key, key);
}

TEST(WithPlace, AKeyWithoutAFileIsFound) {
  expect_in_run_file(placed(place_of("seed")), "seed", 1);
  expect_in_run_file(placed(place_of("data.path")), "data.path", 3);
  EXPECT_FALSE(placed(place_of("train.steps")).place().file);
}

TEST(WithPlace, AnErrorInAFileOfOtherKeysStaysThere) {
  EXPECT_EQ(placed(place_of("levels", "c.toml", 7)).place().file, "c.toml");
  EXPECT_EQ(placed(place_of("seed", "c.toml")).place().file, "c.toml");
}

TEST(WithPlace, AnErrorInDataNamesBothFiles) {
  const UserError bad = placed(place_of("data.path", "a.txt"));
  expect_in_run_file(bad, "data.path", 3);
  EXPECT_STREQ(bad.what(), "a.txt: wrong");
  EXPECT_STREQ(placed(place_of("data.path", "a.txt"), "a.txt is empty").what(), "a.txt is empty");
  expect_in_run_file(placed(place_of("data.tokenizer", "t.json")), "data.tokenizer", 4);
  // A key that is not written stands for what it would say of the path.
  expect_in_run_file(placed(place_of("data.encoding", "a.txt")), "data.encoding", 3);
}

TEST(WithPlace, ALineOfTheDataStays) {
  const UserError bad = placed(place_of("data.text_field", "a.jsonl", 12));
  EXPECT_EQ(bad.place().file, "a.jsonl");
  EXPECT_EQ(bad.place().line, 12);
  EXPECT_THAT(bad.what(), HasSubstr("run.toml:3"));
  EXPECT_THAT(bad.what(), StartsWith("wrong"));
}

}  // namespace
}  // namespace strait
