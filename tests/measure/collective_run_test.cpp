// Every operation is right on a grid, the bounds have their closed forms, wrong words are refused.
#include "strait/measure/collective_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/bench/bench_collective.h"

namespace strait::measure {
namespace {

using ::testing::HasSubstr;

TEST(CollectiveRun, IsRightForEveryOperationRanksSizeAndDtype) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    RankTeam team(ranks, 1);
    for (const std::string& operation : collective_operations()) {
      for (const int64_t bytes : {32, 1000, 65536, 1000000}) {
        for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64}) {
          CollectiveCase collective{operation, "threads", ranks, {}, dtype, "none"};
          collective.bytes = collective.equal_parts(bytes);
          CollectiveRun run(team, collective);
          EXPECT_EQ(run.check(), "");
          run.run(3);
          EXPECT_EQ(run.check(), "");
          EXPECT_LE(run.vector_bytes(), bytes);
          EXPECT_GT(run.vector_bytes(), bytes - ranks * dtype_bytes(dtype));
        }
      }
    }
  }
}

TEST(CollectiveRun, MovesTheBytesOfTheClosedForms) {
  RankTeam team(4, 1);
  const auto moved = [&](const std::string& operation) {
    return CollectiveRun(team, {.operation = operation, .ranks = 4, .bytes = 1600}).moved_bytes();
  };
  EXPECT_EQ(moved("all-gather"), 2 * 3 * 1600);
  EXPECT_EQ(moved("broadcast"), 2 * 3 * 1600);
  EXPECT_EQ(moved("reduce-scatter"), 5 * 1600);
  EXPECT_EQ(moved("all-reduce"), 8 * 1600);
  EXPECT_EQ(moved("all-to-all"), 8 * 1600);
}

void expect_refused(const CollectiveCase& collective, const std::string& part) {
  RankTeam team(collective.ranks, 1);
  try {
    CollectiveRun run(team, collective);
    ADD_FAILURE() << part;
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

TEST(CollectiveRun, RefusesWhatDoesNotExist) {
  expect_refused({.operation = "allgather"}, "nearest valid choice: \"all-gather\"");
  expect_refused({.backend = "mpi"}, "nearest valid choice: \"threads\"");
  expect_refused({.dtype = Dtype::kBfloat16}, "dtype \"bf16\" is unknown");
  expect_refused({.codec = "int8/2048"}, "nearest valid choice: \"none\"");
  expect_refused({.ranks = 3, .bytes = 11}, "nearest valid choice: 12");
  expect_refused({.ranks = 3, .bytes = 1001}, "nearest valid choice: 996");
  expect_refused({.ranks = 2, .bytes = (1 << 20) + 5}, "nearest valid choice: 1048584");
  expect_refused({.ranks = 2, .bytes = 12, .dtype = Dtype::kFloat64}, "nearest valid choice: 16");
}

TEST(CollectiveRun, WithoutASizeTakesOneThatTheRanksShareEqually) {
  for (const int64_t ranks : {1, 3, 7}) {
    const CollectiveCase collective{.ranks = ranks};
    check_case(collective);
    EXPECT_EQ(collective.vector_bytes() % (4 * ranks), 0);
    EXPECT_NEAR(static_cast<double>(collective.vector_bytes()), 64 << 20, 4.0 * ranks);
  }
}

TEST(BenchCollective, FillsARow) {
  const BenchRow row =
      bench_collective({.operation = "all-reduce", .ranks = 2, .bytes = 1 << 20}, {.runs = 5});
  EXPECT_EQ(row.failure, "");
  ASSERT_TRUE(row.seconds && row.bound);
  EXPECT_EQ(row.seconds->count, 5);
  EXPECT_EQ(row.bound->name, "memory-copy");
  EXPECT_GT(row.bound->seconds, 0.0);
  EXPECT_EQ(row.work, 1 << 20);
  EXPECT_EQ(
      row.bench_case.dump(),
      Json::parse(R"({"operation":"all-reduce","backend":"threads","ranks":2,"bytes":1048576,)"
                  R"("dtype":"fp32","codec":"none"})",
                  "wanted")
          .dump());
}

TEST(BenchCollective, AWorldOfOneHasNoBound) {
  const BenchRow row = bench_collective({.ranks = 1, .bytes = 4096}, {.runs = 5});
  EXPECT_FALSE(row.bound);
  EXPECT_TRUE(row.seconds);
}

}  // namespace
}  // namespace strait::measure
