#include "strait/bench/bench_checkpoint.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "strait/base/errors.h"

namespace strait::measure {
namespace {

TEST(BenchCheckpoint, VerifiesSavesLoadsAndLeavesNothing) {
  const std::string folder = ::testing::TempDir() + "strait-bench-test";
  std::filesystem::create_directories(folder);
  for (const int64_t ranks : {1, 3}) {
    const std::vector<BenchRow> rows =
        bench_checkpoint({ranks, 1'000'003, folder}, {.warmups = 1, .runs = 5});
    ASSERT_EQ(rows.size(), 2u);
    const char* directions[] = {"save", "load"};
    const char* bounds[] = {"disk-write", "disk-read"};
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(rows[i].failure, "");
      EXPECT_EQ(rows[i].bench_case.at("direction").as_string(), directions[i]);
      EXPECT_EQ(rows[i].bench_case.at("ranks").as_integer(), ranks);
      EXPECT_EQ(rows[i].seconds->count, 5);
      EXPECT_GT(rows[i].seconds->min, 0);
      EXPECT_EQ(rows[i].bound->name, bounds[i]);
      EXPECT_GT(rows[i].bound->seconds, 0);
      EXPECT_NEAR(rows[i].work, 1e6, 1000);
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  std::filesystem::remove_all(folder);
  try {
    bench_checkpoint({1, 1000, folder + "/none"});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("--folder"));
  }
}

}  // namespace
}  // namespace strait::measure
