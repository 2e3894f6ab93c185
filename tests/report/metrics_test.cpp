// metrics.jsonl: round trip, torn lines at every byte, truncation on resume, errors.
#include "strait/report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "tests/file_size_limit.h"

namespace strait::report {
namespace {

class MetricsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("metrics_" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "metrics.jsonl";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write_text(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  std::filesystem::path folder_;
  std::string path_;
};

StepMetrics example(int64_t step) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 5.0 + 1.0 / static_cast<double>(step);
  metrics.gradient_norm = 0.1;
  metrics.learning_rate = 1e-3;
  metrics.tokens_per_second = 12345.678;
  metrics.model_flops_utilization = 0.41;
  metrics.seconds = 0.3;
  metrics.compute_seconds = 0.25;
  metrics.exposed_communication_seconds = 0.02;
  metrics.bytes_per_level = {{"pair", 123456789012}, {"world", 0}};
  metrics.memory_bytes = int64_t{1} << 40;
  metrics.resident_bytes = int64_t{3} << 40;
  metrics.predicted_seconds = 0.28;
  if (step % 2 == 0) metrics.validation_loss = 5.5;
  return metrics;
}

std::vector<int64_t> steps_of(const std::vector<StepMetrics>& all) {
  std::vector<int64_t> steps;
  for (const StepMetrics& metrics : all) steps.push_back(metrics.step);
  return steps;
}

TEST_F(MetricsTest, KeysAreThoseOfTheInterface) {
  EXPECT_EQ(to_json(example(2)).dump(),
            R"({"step": 2, "loss": 5.5, "gradient_norm": 0.1, "learning_rate": 0.001, )"
            R"("tokens_per_second": 12345.678, "model_flops_utilization": 0.41, "seconds": 0.3, )"
            R"("compute_seconds": 0.25, "exposed_communication_seconds": 0.02, "bytes_per_level": )"
            R"([{"level": "pair", "bytes": 123456789012}, {"level": "world", "bytes": 0}], )"
            R"("memory_bytes": 1099511627776, "resident_bytes": 3298534883328, )"
            R"("predicted_seconds": 0.28, "validation_loss": 5.5})");
  EXPECT_EQ(to_json(example(3)).find("validation_loss"), nullptr);
}

TEST_F(MetricsTest, OnlyASkippedStepSaysSo) {
  StepMetrics metrics = example(3);
  EXPECT_EQ(to_json(metrics).find("skipped"), nullptr);
  EXPECT_FALSE(metrics_from_json(to_json(metrics)).skipped);
  metrics.skipped = true;
  EXPECT_TRUE(metrics_from_json(to_json(metrics)).skipped);
}

TEST_F(MetricsTest, RoundTripKeepsEveryBit) {
  {
    MetricsWriter writer(path_, 0);
    for (int64_t step = 1; step <= 5; ++step) writer.append(example(step));
    StepMetrics unknown;
    unknown.step = 6;
    writer.append(unknown);
  }
  const auto all = read_metrics(path_);
  ASSERT_EQ(all.size(), 6u);
  for (int64_t step = 1; step <= 5; ++step) {
    const StepMetrics& metrics = all[static_cast<size_t>(step - 1)];
    EXPECT_EQ(to_json(metrics).dump(), to_json(example(step)).dump());
    EXPECT_EQ(metrics.loss, example(step).loss);
  }
  EXPECT_TRUE(std::isnan(all[5].loss));
  EXPECT_TRUE(std::isnan(all[5].predicted_seconds));
}

TEST_F(MetricsTest, AnEndAtAnyByteLosesAtMostTheTornLine) {
  std::string whole;
  for (int64_t step = 1; step <= 3; ++step) whole += to_json(example(step)).dump() + "\n";
  std::set<size_t> ends = {0, 1};
  for (size_t i = 1; i < whole.size(); ++i) {
    if (i % 31 == 0 || whole[i] == '\n') ends.insert({i - 1, i, i + 1});
  }
  for (const size_t size : ends) {
    write_text(whole.substr(0, size));
    const auto lines =
        std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size), '\n');
    ASSERT_EQ(static_cast<std::ptrdiff_t>(read_metrics(path_).size()), lines) << size;
    {
      MetricsWriter writer(path_, 3);
      writer.append(example(4));
    }
    const auto steps = steps_of(read_metrics(path_));
    ASSERT_EQ(static_cast<std::ptrdiff_t>(steps.size()), lines + 1) << size;
    ASSERT_EQ(steps.back(), 4);
  }
}

TEST_F(MetricsTest, ResumeDropsLaterSteps) {
  for (int64_t resumed = 0; resumed <= 6; ++resumed) {
    {
      MetricsWriter writer(path_, 0);
      for (int64_t step = 1; step <= 5; ++step) writer.append(example(step));
    }
    MetricsWriter writer(path_, resumed);
    writer.append(example(resumed + 1));
    std::vector<int64_t> expected;
    for (int64_t step = 1; step <= std::min<int64_t>(resumed, 5); ++step) expected.push_back(step);
    expected.push_back(resumed + 1);
    EXPECT_EQ(steps_of(read_metrics(path_)), expected) << resumed;
  }
}

TEST_F(MetricsTest, ResumeWithoutFileMakesOne) {
  MetricsWriter(path_, 7).append(example(8));
  EXPECT_EQ(steps_of(read_metrics(path_)), std::vector<int64_t>{8});
}

TEST_F(MetricsTest, LinesSurviveSigkill) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    MetricsWriter writer(path_, 0);
    for (int64_t step = 1; step <= 3; ++step) writer.append(example(step));
    (void)!::write(ends[1], "x", 1);
    ::pause();
  }
  char ready = 0;
  ASSERT_EQ(::read(ends[0], &ready, 1), 1);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(steps_of(read_metrics(path_)), (std::vector<int64_t>{1, 2, 3}));
}

TEST_F(MetricsTest, AMalformedLineIsNamed) {
  const std::string good = to_json(example(1)).dump() + "\n";
  for (const std::string& bad :
       {std::string("{\"step\":2\n"), std::string("[]\n"), std::string("{\"loss\":1}\n"),
        std::string("{\"step\":\"two\",\"bytes_per_level\":[],\"memory_bytes\":0}\n")}) {
    write_text(good + bad + good);
    try {
      read_metrics(path_);
      ADD_FAILURE() << "accepted " << bad;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().line, 2);
      EXPECT_EQ(error.place().file, path_);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("metrics.jsonl:2: "));
    }
  }
}

TEST_F(MetricsTest, BlankLinesAreSkippedAndCounted) {
  const std::string one = to_json(example(1)).dump() + "\n",
                    two = to_json(example(2)).dump() + "\n";
  write_text("\n" + one + " \t\r\n\n" + two + "\n");
  EXPECT_EQ(steps_of(read_metrics(path_)), (std::vector<int64_t>{1, 2}));
  write_text("\n" + one + "\n[]\n");
  try {
    read_metrics(path_);
    ADD_FAILURE() << "accepted []";
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().line, 4);
  }
}

TEST_F(MetricsTest, StepsRiseFromOneAndNoBytesAreNegative) {
  StepMetrics sent = example(8), memory = example(8), resident = example(8);
  sent.bytes_per_level[1].bytes = -1;
  memory.memory_bytes = -2;
  resident.resident_bytes = -3;
  for (const auto& [bad, said] :
       {std::pair(example(7), "step 7 follows step 7"),
        std::pair(example(6), "step 6 follows step 7"), std::pair(example(0), "step is 0"),
        std::pair(example(-8), "step is -8"), std::pair(sent, "bytes is -1"),
        std::pair(memory, "memory_bytes is -2"), std::pair(resident, "resident_bytes is -3")}) {
    write_text(to_json(example(7)).dump() + "\n" + to_json(bad).dump() + "\n");
    try {
      read_metrics(path_);
      ADD_FAILURE() << "accepted, where " << said;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().line, 2);
      EXPECT_EQ(error.place().file, path_);
      EXPECT_THAT(error.what(), ::testing::HasSubstr(said));
    }
  }
}

TEST_F(MetricsTest, FileErrors) {
  EXPECT_THROW(read_metrics(path_), UserError);
  EXPECT_THROW(MetricsWriter(folder_ / "none" / "metrics.jsonl", 0), InputOutputError);
  EXPECT_THROW(MetricsWriter("/dev/full", 0), UserError);  // a device is no run folder's file
  MetricsWriter full(path_, 0);
  const test::FileSizeLimit limit(8);
  try {
    full.append(example(1));
    ADD_FAILURE() << "a full disk went unnoticed";
  } catch (const InputOutputError& error) {
    EXPECT_EQ(error.code(), ExitCode::kInputOutput);
    EXPECT_EQ(error.place().file, path_);
  }
}

}  // namespace
}  // namespace strait::report
