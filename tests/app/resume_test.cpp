// Kill it anywhere: the run that goes on ends with the same bits as one that was never disturbed.
#include <gtest/gtest.h>

#include "strait/report/metrics.h"
#include "tests/app/program.h"
#include "tests/sanitized.h"

namespace strait {
namespace {

using test::Child;
using test::run;
using test::TemporaryFolder;

constexpr int64_t kSteps = 160;

std::vector<std::string> train_arguments(const std::string& run_file, const std::string& run_dir,
                                         bool asynchronous, const std::string& json) {
  return {"train",   run_file,
          "--ranks", "2",
          "--set",   "output.run_dir=" + run_dir,
          "--set",   "checkpoint.resume=auto",
          "--set",   "checkpoint.every_steps=4",
          "--set",   "train.steps=" + std::to_string(kSteps),
          "--set",   std::string("checkpoint.asynchronous=") + (asynchronous ? "true" : "false"),
          "--json",  json};
}

std::string hash_of(const std::string& json) {
  return Json::parse(read_file(json), json).at("parameter_hash").as_string();
}

/// One run after the other is killed at random moments and goes on, until `wanted` kills are
/// reached and a run has come to its end.
class KillChain {
 public:
  /// `run_file` in `folder`; `seconds` is how long a run takes undisturbed, `want` the hash that it
  /// ends with.
  KillChain(std::string folder, std::string run_file, double seconds, std::string want)
      : folder_(std::move(folder)),
        run_file_(std::move(run_file)),
        seconds_(seconds),
        want_(std::move(want)) {}

  /// With `asynchronous`, every save is; otherwise every second launch saves while training waits.
  void run(int wanted, bool asynchronous) {
    const RandomStream stream(11, folder_);
    for (uint64_t launch = 0; kills < wanted || finished == 0; ++launch) {
      ASSERT_LT(launch, 400u);
      const std::string run_dir = folder_ + "/run" + std::to_string(finished);
      Child child(train_arguments(run_file_, run_dir, asynchronous || launch % 2 == 0, json()),
                  log());
      const double delay = kills < wanted ? stream.uniform(launch) * seconds_ : 1e9;
      if (killed_after(child, delay)) {
        ++kills;
        interrupted += saves_cut_short(run_dir);
        continue;
      }
      ASSERT_EQ(child.wait(), 0) << read_file(log());
      EXPECT_EQ(hash_of(json()), want_);
      expect_every_step_once(run_dir);
      ++finished;
    }
  }

  int kills = 0, finished = 0;
  int interrupted = 0;  // kills in the middle of a save

 private:
  std::string json() const { return folder_ + "/report.json"; }
  std::string log() const { return folder_ + "/log"; }
  static bool killed_after(Child& child, double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (child.running() && std::chrono::steady_clock::now() < end) test::sleep_seconds(0.001);
    if (!child.running()) return false;
    child.signal(SIGKILL);
    child.wait();
    return true;
  }
  static int saves_cut_short(const std::string& run_dir) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(run_dir + "/checkpoints", error))
      if (entry.path().filename().string().front() == '.') return 1;
    return 0;
  }
  static void expect_every_step_once(const std::string& run_dir) {
    const std::vector<report::StepMetrics> metrics =
        report::read_metrics(run_dir + "/metrics.jsonl");
    ASSERT_EQ(metrics.size(), static_cast<size_t>(kSteps));
    for (size_t i = 0; i < metrics.size(); ++i)
      EXPECT_EQ(metrics[i].step, static_cast<int64_t>(i) + 1);
  }

  std::string folder_, run_file_;
  double seconds_;
  std::string want_;
};

TEST(Resume, HundredKillsAtRandomMomentsEndWithTheSameHash) {
  const TemporaryFolder folder, first, second;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(Child(train_arguments(run_file, folder.path() + "/whole", true, json), log).wait(), 0)
      << read_file(log);
  const double whole =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  // Two chains at a time: starting the program takes longer than the run.
  KillChain one(first.path(), run_file, whole, hash_of(json));
  KillChain other(second.path(), run_file, whole, hash_of(json));
  const int kills = static_cast<int>(test::repetitions(50, 25));
  std::thread beside([&] { one.run(kills, true); });
  other.run(kills, false);
  beside.join();
  for (const KillChain* chain : {&one, &other}) {
    EXPECT_GE(chain->kills, kills);
    EXPECT_GE(chain->finished, 1);
    EXPECT_GT(chain->interrupted, 0) << "no kill met a save";
  }
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
    EXPECT_LT(stopped.at("steps").as_integer(), kSteps);
    ASSERT_EQ(Child(train_arguments(run_file, run_dir, true, json), log).wait(), 0)
        << read_file(log);
    const Json resumed = Json::parse(read_file(json), json);
    EXPECT_EQ(resumed.at("resumed_from_step").as_integer(), stopped.at("steps").as_integer());
    EXPECT_EQ(resumed.at("losses").size(), static_cast<size_t>(kSteps));
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
