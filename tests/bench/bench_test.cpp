// Rows: verified before timed, JSON as the interface fixes it.
#include "strait/bench/bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"

namespace strait::measure {
namespace {

BenchWork sample_work() {
  BenchWork work;
  work.bench_case = Json::object({{"size", 3}});
  work.verify = [] { return std::string(); };
  work.ours = {"strait", "", [] { return 2.0; }, ""};
  work.work = 10.0;
  work.rate_unit = "flops_per_second";
  work.bound = Contender{"copy", "", [] { return 0.5; }, ""};
  work.bound_factor = 3.0;
  work.peers = {{"slow", "1.2", [] { return 5.0; }, ""}, {"absent", "", nullptr, "not installed"}};
  return work;
}

TEST(BenchRow, JsonHasTheKeysOfTheInterface) {
  const BenchReport report{"gemm", {bench_row(sample_work(), {.runs = 5})}};
  EXPECT_TRUE(report.verified());
  EXPECT_EQ(
      bench_report_to_json(report).dump(),
      Json::parse(
          R"({"subject":"gemm","verified":true,"rows":[{"case":{"size":3},)"
          R"("seconds":{"median":2.0,"min":2.0,"max":2.0,"p10":2.0,"p90":2.0,"count":5},)"
          R"("rate":5.0,"rate_unit":"flops_per_second","bound":{"name":"copy","seconds":1.5},)"
          R"("bound_share":0.75,)"
          R"("reference":null,"reference_share":null,)"
          R"("peers":[{"name":"slow","version":"1.2",)"
          R"("seconds":{"median":5.0,"min":5.0,"max":5.0,"p10":5.0,"p90":5.0,"count":5},)"
          R"("speedup":2.5,"missing":null},)"
          R"({"name":"absent","version":null,"seconds":null,"speedup":null,)"
          R"("missing":"not installed"}],)"
          R"("failure":null}]})",
          "wanted")
          .dump());
}

TEST(BenchRow, ABoundThatWasPassedIsAlsoAReference) {
  BenchWork work = sample_work();
  work.bound_factor = 5.0;  // 2.5 seconds against our 2
  const BenchReport report{"gemm", {bench_row(work, {.runs = 5})}};
  const Json json = bench_report_to_json(report);
  const Json& row = json.at("rows").as_array()[0];
  EXPECT_EQ(row.at("bound").dump(), Json::object({{"name", "copy"}, {"seconds", 2.5}}).dump());
  EXPECT_EQ(row.at("bound_share").as_number(), 1.25);
  EXPECT_EQ(row.at("reference").at("name").as_string(), "copy");
  EXPECT_EQ(row.at("reference_share").as_number(), 1.25);
}

TEST(BenchRow, WithoutAYardstickNoBoundIsKnown) {
  BenchWork work = sample_work();
  work.bound.reset();
  const Json json = bench_rows_to_json({bench_row(work, {.runs = 5})});
  for (const char* key : {"bound", "bound_share", "reference", "reference_share"})
    EXPECT_TRUE(json.as_array()[0].at(key).is_null()) << key;
}

TEST(BenchRow, WrongResultsAreNotTimed) {
  BenchWork work = sample_work();
  work.verify = [] { return std::string("element 7 is 1, not 2"); };
  work.ours.run = []() -> double { throw InternalError("timed although wrong"); };
  const BenchReport report{"gemm", {bench_row(work, {.runs = 5})}};
  EXPECT_FALSE(report.verified());
  const Json json = bench_report_to_json(report);
  const Json& row = json.at("rows").as_array()[0];
  EXPECT_FALSE(json.at("verified").as_bool());
  EXPECT_EQ(row.at("failure").as_string(), "element 7 is 1, not 2");
  for (const char* key : {"seconds", "rate", "bound", "bound_share"})
    EXPECT_TRUE(row.at(key).is_null()) << key;
}

TEST(BenchRow, ABoundThatCannotBeMeasuredIsAnError) {
  BenchWork work = sample_work();
  work.bound->run = []() -> double { throw UserError("no memory"); };
  EXPECT_THROW(bench_row(work, {.runs = 5}), InternalError);
}

TEST(BenchReport, WithoutRowsIsNotVerified) { EXPECT_FALSE((BenchReport{"gemm", {}}).verified()); }

TEST(BenchGemm, FillsARow) {
  const BenchRow row =
      bench_gemm({.m = 64, .n = 96, .k = 128}, Dtype::kFloat64, 1, {.warmups = 1, .runs = 5});
  EXPECT_EQ(row.failure, "");
  EXPECT_EQ(row.bench_case.dump(),
            Json::parse(R"({"m":64,"n":96,"k":128,"dtype":"fp64","threads":1})", "wanted").dump());
  ASSERT_TRUE(row.seconds && row.bound);
  EXPECT_EQ(row.work, 2.0 * 64 * 96 * 128);
  EXPECT_EQ(row.bound->name, "large-gemm");
  ASSERT_EQ(row.peers.size(), 1u);
  EXPECT_EQ(row.peers[0].name, "blas");
  EXPECT_TRUE(row.peers[0].seconds);
  EXPECT_THAT(row.peers[0].version, ::testing::HasSubstr("OpenBLAS"));
  EXPECT_GT(row.bound->seconds, 0.0);
}

TEST(BenchGemm, BothPeersHaveAVersion) {
  const BenchRow row =
      bench_gemm({.m = 8, .n = 8, .k = 8}, Dtype::kBfloat16, 1, {.warmups = 1, .runs = 5});
  ASSERT_EQ(row.peers.size(), 1u);
  EXPECT_EQ(row.peers[0].name, "torch");
  EXPECT_THAT(row.peers[0].version, ::testing::MatchesRegex("[1-9]+[.].*"));
}

}  // namespace
}  // namespace strait::measure
