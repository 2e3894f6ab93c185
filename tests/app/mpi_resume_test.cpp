// Checkpoints between backends, worlds and placements; and runs under mpirun that are killed, most
// often while they save, and go on. STRAIT_MPI_KILLS=100 kills as often.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "strait/base/random.h"
#include "strait/report/metrics.h"
#include "tests/app/mpi_job.h"
#include "tests/paths.h"

namespace strait {
namespace {

using test::Child;
using test::MpiJob;
using test::TemporaryFolder;

/// Where a part of a run is made.
struct Leg {
  bool mpi = false;
  int64_t ranks = 1;
  std::string placement;
};

class Legs : public ::testing::Test {
 protected:
  static constexpr int64_t kLegSteps = 6, kSteps = 18;

  /// From `checkpoint`, or from the start when it is empty, to the last step; returns its report.
  Json make(const Leg& leg, const std::string& name, const std::string& checkpoint) {
    const std::string json = folder_.path() + "/" + name + ".json", log = folder_.path() + "/log";
    std::vector<std::string> arguments = {"train", run_file_, "--json", json};
    for (const std::string& set :
         {"output.run_dir=" + path(name), "placement.preset=" + leg.placement,
          std::string("train.precision=fp64"), std::string("train.global_batch_size=24"),
          "train.steps=" + std::to_string(kSteps),
          "checkpoint.every_steps=" + std::to_string(kLegSteps),
          "checkpoint.resume=" + (checkpoint.empty() ? "never" : checkpoint)})
      arguments.insert(arguments.end(), {"--set", set});
    std::vector<std::string> launcher;
    if (leg.mpi)
      launcher = test::mpirun(leg.ranks);
    else
      arguments.insert(arguments.end(), {"--ranks", std::to_string(leg.ranks)});
    EXPECT_EQ(Child(arguments, log, launcher).wait(), 0) << read_file(log);
    Json report = Json::parse(read_file(json), json);
    EXPECT_EQ(report.at("backend").as_string(), leg.mpi ? "mpi" : "threads");
    EXPECT_EQ(report.at("steps").as_integer(), kSteps);
    return report;
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::string checkpoint(const std::string& name, int64_t legs) const {
    char step[32];
    std::snprintf(step, sizeof(step), "/checkpoints/step-%08d", static_cast<int>(legs * kLegSteps));
    return path(name) + step;
  }
  /// The loss of a step depends on its sequences and on all steps before: within what sums in
  /// another order leave of fp64.
  static void expect_same_curve(const Json& got, const Json& want, int64_t from) {
    const auto& losses = got.at("losses").as_array();
    const auto& reference = want.at("losses").as_array();
    ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps - from));
    EXPECT_EQ(got.at("resumed_from_step").as_integer(), from);
    for (size_t at = 0; at < losses.size(); ++at) {
      const double loss = reference[static_cast<size_t>(from) + at].as_number();
      EXPECT_NEAR(losses[at].as_number(), loss, 1e-9 * loss) << "step " << from + at;
    }
  }

  const TemporaryFolder folder_;
  const std::string run_file_ = test::small_run_file(folder_.path());
};

TEST_F(Legs, FourTwoThreeRanksOfMixedBackendsAndPlacementsKeepTheCurve) {
  const Json whole = make({false, 4, "zero3"}, "whole", "");
  expect_same_curve(make({true, 2, "zero1"}, "two", checkpoint("whole", 1)), whole, kLegSteps);
  expect_same_curve(make({false, 3, "ddp"}, "three", checkpoint("two", 2)), whole, 2 * kLegSteps);
  // The other way round, through other placements.
  expect_same_curve(make({true, 4, "mics"}, "four", checkpoint("whole", 1)), whole, kLegSteps);
  expect_same_curve(make({true, 3, "zero2"}, "last", checkpoint("four", 2)), whole, 2 * kLegSteps);
}

TEST_F(Legs, TheSameLayoutOnAnotherBackendEndsWithTheSameBits) {
  const Json whole = make({false, 4, "zero3"}, "whole", "");
  const Json second = make({true, 4, "zero3"}, "second", checkpoint("whole", 1));
  const Json third = make({false, 4, "zero3"}, "third", checkpoint("second", 2));
  for (const Json* leg : {&second, &third})
    EXPECT_EQ(leg->at("parameter_hash").as_string(), whole.at("parameter_hash").as_string());
  const auto& want = whole.at("losses").as_array();
  const auto& got = third.at("losses").as_array();
  for (size_t at = 0; at < got.size(); ++at)
    EXPECT_EQ(got[at].as_number(), want[2 * kLegSteps + at].as_number());
}

class Kills : public ::testing::Test {
 protected:
  static constexpr int64_t kSteps = 300, kRanks = 3;

  std::vector<std::string> arguments(const std::string& name, const std::string& json) const {
    std::vector<std::string> all = {"train", run_file_, "--json", json};
    for (const std::string& set :
         {"output.run_dir=" + folder_.path() + "/" + name, std::string("train.micro_batch_size=2"),
          std::string("train.global_batch_size=6"), std::string("checkpoint.resume=auto"),
          std::string("checkpoint.every_steps=5"), std::string("checkpoint.keep=2"),
          std::string("runtime.deadline_seconds=10"), "train.steps=" + std::to_string(kSteps)})
      all.insert(all.end(), {"--set", set});
    for (const std::string& set : more_) all.insert(all.end(), {"--set", set});
    return all;
  }
  std::string run_dir() const { return folder_.path() + "/killed"; }
  std::string json_of(int number) const {
    return folder_.path() + "/" + std::to_string(number) + "/report.json";
  }

  int64_t metrics_bytes() const {
    std::error_code none;
    const auto bytes = std::filesystem::file_size(run_dir() + "/metrics.jsonl", none);
    return none ? 0 : static_cast<int64_t>(bytes);
  }
  /// Names of folders that a save has begun and not published.
  int unfinished_saves() const {
    int count = 0;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(run_dir() + "/checkpoints", none))
      if (entry.path().filename().string().front() == '.') ++count;
    return count;
  }

  /// Kills the launcher with all ranks, or one rank, whose loss the launcher answers by ending the
  /// others. False when the run came to its end before.
  bool kill_once(int number) {
    const RandomStream stream(31, "mpi kills", static_cast<uint64_t>(number));
    const std::string folder = folder_.path() + "/" + std::to_string(number);
    std::filesystem::create_directories(folder);
    MpiJob job(arguments("killed", json_of(number)), kRanks, folder, false,
               test::in_build("strait"), {.recovery = false});
    auto processes = job.find_all();
    test::wait_for_step(job.launcher(), run_dir());
    // Some steps later, however long they take.
    const int64_t bytes = metrics_bytes() + static_cast<int64_t>(stream.below(0, 20'000));
    // Two thirds of the kills wait for a save that is under way.
    const bool while_saving = stream.below(1, 3) != 0;
    while (job.launcher().running() &&
           (metrics_bytes() < bytes || (while_saving && unfinished_saves() == 0)))
      test::sleep_seconds(0.0002);
    if (!job.launcher().running() && job.launcher().wait() == 0) return false;
    if (stream.below(2, 2) == 0) {
      job.launcher().signal(SIGKILL);
      for (const auto& [rank, process] : processes) ::kill(process, SIGKILL);
    } else {
      ::kill(processes[static_cast<int64_t>(stream.below(3, kRanks))], SIGKILL);
    }
    EXPECT_TRUE(job.ends_within(20)) << "the launcher stays";
    EXPECT_LT(job.wait_for_end(processes, 20), 20) << "ranks stay";
    return true;
  }

  void expect_the_same_end();

  const TemporaryFolder folder_;
  const std::string run_file_ = test::small_run_file(folder_.path());
  std::vector<std::string> more_;  // settings
};

void Kills::expect_the_same_end() {
  const std::string json = folder_.path() + "/report.json", log = folder_.path() + "/log";
  std::vector<std::string> whole = arguments("whole", json);
  whole.insert(whole.end(), {"--ranks", std::to_string(kRanks)});
  ASSERT_EQ(Child(whole, log).wait(), 0) << read_file(log);
  const std::string want = Json::parse(read_file(json), json).at("parameter_hash").as_string();
  const char* text = std::getenv("STRAIT_MPI_KILLS");
  const int wanted = text == nullptr ? 4 : std::atoi(text);
  int kills = 0, while_saving = 0, finished = 0;
  for (int number = 0; kills < wanted || while_saving == 0; ++number) {
    ASSERT_LT(number, 10 * wanted);
    if (!kill_once(number)) {
      EXPECT_EQ(Json::parse(read_file(json_of(number)), "report").at("parameter_hash").as_string(),
                want);
      std::filesystem::remove_all(run_dir());
      ++finished;
      continue;
    }
    ++kills;
    if (unfinished_saves() > 0) ++while_saving;
  }
  ASSERT_EQ(Child(arguments("killed", json), log, test::mpirun(kRanks)).wait(), 0)
      << read_file(log);
  EXPECT_EQ(Json::parse(read_file(json), json).at("parameter_hash").as_string(), want);
  EXPECT_EQ(unfinished_saves(), 0);
  const auto metrics = report::read_metrics(run_dir() + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), static_cast<size_t>(kSteps));
  for (size_t at = 0; at < metrics.size(); ++at)
    EXPECT_EQ(metrics[at].step, static_cast<int64_t>(at) + 1);
  std::printf("%d kills, %d of them cut a save in two, %d runs had ended before\n", kills,
              while_saving, finished);
  EXPECT_GT(while_saving, 0);
}

TEST_F(Kills, WhatIsLeftGoesOnToTheSameBitsAndNothingElseStays) { expect_the_same_end(); }

/// In the middle of rounds, with a fragment under way in half of the steps.
TEST_F(Kills, RoundsOfReplicasToo) {
  more_ = {"sync.policy=streaming-diloco", "sync.rounds.period_steps=12", "sync.rounds.fragments=2",
           "sync.rounds.delay_steps=2",    "placement.preset=ddp",        "train.clip_norm=0",
           "optimizer.in_backward=true"};
  expect_the_same_end();
}

}  // namespace
}  // namespace strait
