// Several runs in one table and one picture.
#include "strait/report/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/report/metrics.h"

namespace strait::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CompareTest : public ::testing::Test {
 protected:
  CompareTest() { std::filesystem::remove_all(folder_); }
  ~CompareTest() override { std::filesystem::remove_all(folder_); }

  /// A run of `count` steps whose loss is `loss` throughout.
  std::string write_run(const std::string& name, int64_t count, double loss) const {
    const std::string run_dir = folder_ / name;
    std::filesystem::create_directories(run_dir);
    MetricsWriter writer(run_dir + "/metrics.jsonl", 0);
    for (int64_t step = 1; step <= count; ++step) {
      StepMetrics metrics;
      metrics.step = step;
      metrics.loss = loss;
      metrics.seconds = 0.5;
      metrics.tokens_per_second = 2048;
      metrics.bytes_per_level = {{"node", 1000000}, {"world", 2000000}};
      writer.append(metrics);
    }
    return run_dir;
  }

  std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("compare_" + std::to_string(::getpid()));
};

TEST_F(CompareTest, EachRunIsAColumn) {
  const std::string one = write_run("first", 10, 2.5), two = write_run("second", 20, 1.25);
  const RunReport report = compare_runs({one, two + "/"});
  EXPECT_THAT(report.text, HasSubstr("         first        second\n"));
  EXPECT_THAT(report.text, HasSubstr("training loss           2.5000        1.2500"));
  EXPECT_THAT(report.text, HasSubstr("sent per step          3.00 MB       3.00 MB"));
  EXPECT_THAT(report.text, HasSubstr("MFU                          -             -"));
  EXPECT_EQ(report.summary.at("runs").size(), 2u);
  EXPECT_EQ(report.summary.at("runs").as_array()[1].at("steps").as_integer(), 20);
  EXPECT_EQ(report.summary.at("plots").size(), 0u);
  for (const std::string& run_dir : {one, two})  // only read
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(run_dir), {}), 1);
}

TEST_F(CompareTest, ThePictureNamesEachRun) {
  const std::string one = write_run("it's <one>", 10, 2.5), two = write_run("second_run", 20, 1);
  const RunReport report = compare_runs({one, two}, {.folder = folder_ / "both"});
  ASSERT_EQ(report.summary.at("plots").size(), 2u) << report.text;
  const std::string picture = read_file(folder_ / "both" / "compare.svg");
  for (const char* name : {"it's &lt;one>", "second_run", "Loss (nats per token)"})
    EXPECT_THAT(picture, HasSubstr(name));
  const RunReport without = compare_runs({one, two}, {folder_ / "both", "no-such-gnuplot"});
  EXPECT_THAT(without.summary.at("plots_error").as_string(), HasSubstr("no-such-gnuplot"));
}

TEST_F(CompareTest, RunsOfTheSameNameAreToldApartByTheirPaths) {
  const std::string one = write_run("a/run", 10, 2.5), two = write_run("b/run", 20, 1);
  EXPECT_THAT(compare_runs({one, two}).text, AllOf(HasSubstr(one), HasSubstr(two)));
}

TEST_F(CompareTest, WhatIsNoRunIsRefusedByName) {
  const std::string one = write_run("first", 10, 2.5);
  try {
    compare_runs({one, folder_ / "none"});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("none is not a run folder"));
  }
}

}  // namespace
}  // namespace strait::report
