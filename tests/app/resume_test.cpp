// Kill it anywhere: the run that goes on ends with the same bits as one that was never disturbed.
#include <gtest/gtest.h>

#include "strait/report/metrics.h"
#include "tests/app/program.h"

namespace strait {
namespace {

using test::Child;
using test::run;
using test::TemporaryFolder;

std::vector<std::string> train_arguments(const std::string& run_file, const std::string& run_dir,
                                         bool asynchronous, const std::string& json) {
  return {"train",   run_file,
          "--ranks", "2",
          "--set",   "output.run_dir=" + run_dir,
          "--set",   "checkpoint.resume=auto",
          "--set",   "checkpoint.every_steps=4",
          "--set",   "train.steps=400",
          "--set",   std::string("checkpoint.asynchronous=") + (asynchronous ? "true" : "false"),
          "--json",  json};
}

std::string hash_of(const std::string& json) {
  return Json::parse(read_file(json), json).at("parameter_hash").as_string();
}

TEST(Resume, FiftyKillsAtRandomMomentsEndWithTheSameHash) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(Child(train_arguments(run_file, folder.path() + "/whole", true, json), log).wait(), 0)
      << read_file(log);
  const double whole =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const std::string want = hash_of(json);
  const RandomStream stream(11, "kill");
  int kills = 0, finished = 0;
  for (uint64_t launch = 0; kills < 50 || finished == 0; ++launch) {
    ASSERT_LT(launch, 400u);
    const std::string run_dir = folder.path() + "/run" + std::to_string(finished);
    Child child(train_arguments(run_file, run_dir, launch % 2 == 0, json), log);
    const double delay = kills < 50 ? stream.uniform(launch) * whole : 1e9;
    const auto start = std::chrono::steady_clock::now();
    while (child.running() &&
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < delay)
      test::sleep_seconds(0.001);
    if (child.running()) {
      child.signal(SIGKILL);
      child.wait();
      ++kills;
      continue;
    }
    ASSERT_EQ(child.wait(), 0) << read_file(log);
    EXPECT_EQ(hash_of(json), want);
    // No step is lost and none stands twice.
    const std::vector<report::StepMetrics> metrics =
        report::read_metrics(run_dir + "/metrics.jsonl");
    ASSERT_EQ(metrics.size(), 400u);
    for (size_t i = 0; i < metrics.size(); ++i)
      EXPECT_EQ(metrics[i].step, static_cast<int64_t>(i) + 1);
    ++finished;
  }
  EXPECT_GE(kills, 50);
  EXPECT_GE(finished, 1);
}

TEST(Resume, SigtermSavesExitsWithZeroAndTheResumedRunEqualsTheWhole) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  ASSERT_EQ(Child(train_arguments(run_file, folder.path() + "/whole", true, json), log).wait(), 0)
      << read_file(log);
  const std::string want = hash_of(json);
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) {
    const std::string run_dir = folder.path() + "/signal" + std::to_string(signal);
    Child child(train_arguments(run_file, run_dir, true, json), log);
    while (child.running() && !std::filesystem::exists(run_dir + "/checkpoints/step-00000004"))
      test::sleep_seconds(0.001);
    child.signal(signal);
    ASSERT_EQ(child.wait(), 0) << read_file(log);
    const Json stopped = Json::parse(read_file(json), json);
    EXPECT_TRUE(stopped.at("stopped_by").as_string().starts_with("SIG"))
        << stopped.at("stopped_by").as_string();
    EXPECT_LT(stopped.at("steps").as_integer(), 400);
    ASSERT_EQ(Child(train_arguments(run_file, run_dir, true, json), log).wait(), 0)
        << read_file(log);
    const Json resumed = Json::parse(read_file(json), json);
    EXPECT_EQ(resumed.at("resumed_from_step").as_integer(), stopped.at("steps").as_integer());
    EXPECT_EQ(resumed.at("losses").size(), 400u);
    EXPECT_EQ(resumed.at("parameter_hash").as_string(), want);
  }
}

TEST(Resume, AnotherPlacementAndWorldLoadsTheSameState) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string first = folder.path() + "/first";
  ASSERT_EQ(run({"train", run_file, "--ranks", "2", "--set", "output.run_dir=" + first}).exit_code,
            0);
  const auto again =
      run({"train", run_file, "--ranks", "4", "--set", "placement.preset=zero1", "--set",
           "checkpoint.resume=" + first, "--set", "output.run_dir=" + folder.path() + "/second"},
          folder.path() + "/a.json");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto inspected = run({"inspect", first}, folder.path() + "/b.json");
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  EXPECT_EQ(again.report.at("resumed_from_step").as_integer(), 30);
  EXPECT_EQ(again.report.at("steps_this_process").as_integer(), 0);
  EXPECT_EQ(inspected.report.at("step").as_integer(), 30);
}

}  // namespace
}  // namespace strait
