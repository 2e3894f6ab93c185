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
/// reached, one of them in the middle of a save, and a run has come to its end. Moments are counted
/// in what the run does, so that a machine of any speed comes to them: a share of its start, a
/// number of steps and a share of one, or the first save after that number.
class KillChain {
 public:
  /// `run_file` in `folder`; `want` is the hash that an undisturbed run ends with.
  KillChain(std::string folder, std::string run_file, std::string want)
      : folder_(std::move(folder)), run_file_(std::move(run_file)), want_(std::move(want)) {}

  /// With `asynchronous`, every save is; otherwise every second launch saves while training waits.
  void run(int wanted, bool asynchronous) {
    const RandomStream stream(11, folder_);
    for (uint64_t launch = 0; kills < wanted || interrupted == 0 || finished == 0; ++launch) {
      ASSERT_LT(launch, 400u);
      run_dir_ = folder_ + "/run" + std::to_string(finished);
      Child child(train_arguments(run_file_, run_dir_, asynchronous || launch % 2 == 0, json()),
                  log());
      const bool disturb = kills < wanted || interrupted == 0;
      if (disturb && killed_at_a_moment(child, stream, 4 * launch)) {
        ++kills;
        continue;
      }
      ASSERT_EQ(child.wait(), 0) << read_file(log());
      EXPECT_EQ(hash_of(json()), want_);
      expect_every_step_once();
      ++finished;
    }
  }

  int kills = 0, finished = 0;
  int interrupted = 0;  // kills in the middle of a save

 private:
  std::string json() const { return folder_ + "/report.json"; }
  std::string log() const { return folder_ + "/log"; }
  /// What the run has told of its steps; "" before there is a file.
  std::string metrics() const {
    std::ifstream file(run_dir_ + "/metrics.jsonl");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int64_t steps_told() const {
    const std::string text = metrics();
    return std::count(text.begin(), text.end(), '\n');
  }
  /// Once a run has begun to step: what an earlier one left of a save is gone by then.
  bool saves_now() const {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(run_dir_ + "/checkpoints", error))
      if (entry.path().filename().string().front() == '.') return true;
    return false;
  }

  template <class Condition>
  static void wait_until(Child& child, const Condition& condition) {
    while (child.running() && !condition()) test::sleep_seconds(0.0005);
  }

  /// False when the run came to its end before. Uses the numbers `draw` to `draw` + 3 of `stream`.
  bool killed_at_a_moment(Child& child, const RandomStream& stream, uint64_t draw) {
    const double began = now_seconds();
    if (start_seconds_ > 0 && stream.below(draw, 4) == 0) {
      const double end = began + stream.uniform(draw + 1) * start_seconds_;
      wait_until(child, [&] { return now_seconds() >= end; });
      return killed(child);
    }
    const std::string before = metrics();
    wait_until(child, [&] { return metrics() != before; });
    start_seconds_ = now_seconds() - began;
    const auto further = 1 + static_cast<int64_t>(stream.below(draw + 1, 40));
    const int64_t last = steps_told() + further;
    wait_until(child, [&] { return steps_told() >= last; });
    const double step_seconds = (now_seconds() - began - start_seconds_) / further;
    if (stream.below(draw + 2, 3) == 0)
      wait_until(child, [&] { return saves_now(); });
    else
      test::sleep_seconds(stream.uniform(draw + 3) * step_seconds);
    if (!killed(child)) return false;
    interrupted += saves_now();
    return true;
  }

  static bool killed(Child& child) {
    if (!child.running()) return false;
    child.signal(SIGKILL);
    return child.wait() == 128 + SIGKILL;
  }
  void expect_every_step_once() const {
    const std::vector<report::StepMetrics> all = report::read_metrics(run_dir_ + "/metrics.jsonl");
    ASSERT_EQ(all.size(), static_cast<size_t>(kSteps));
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].step, static_cast<int64_t>(i) + 1);
  }

  const std::string folder_, run_file_, want_;
  std::string run_dir_;
  double start_seconds_ = 0;  // from a launch to its first step, the last time
};

TEST(Resume, HundredKillsAtRandomMomentsEndWithTheSameHash) {
  const TemporaryFolder folder, first, second;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  ASSERT_EQ(Child(train_arguments(run_file, folder.path() + "/whole", true, json), log).wait(), 0)
      << read_file(log);
  // Two chains at a time: starting the program takes longer than the run.
  KillChain one(first.path(), run_file, hash_of(json));
  KillChain other(second.path(), run_file, hash_of(json));
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
    Json stopped;
    // A test that is kept from its core misses a run of less than a second: it starts another.
    for (int turn = 0; turn < 20 && (turn == 0 || stopped.at("steps").as_integer() == kSteps);
         ++turn) {
      std::filesystem::remove_all(run_dir);
      Child child(train_arguments(run_file, run_dir, true, json), log);
      while (child.running() && !std::filesystem::exists(run_dir + "/checkpoints/step-00000004"))
        test::sleep_seconds(0.001);
      child.signal(signal);
      ASSERT_EQ(child.wait(), 0) << read_file(log);
      stopped = Json::parse(read_file(json), json);
    }
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

TEST(Resume, AFinishedRunNamesItsCheckpointAndCountsItsTokensAgain) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/documents.toml";
  std::ofstream(file) << "[model]\npreset = \"nano-char\"\nshape = { layers = 2, heads = 2, "
                         "kv_heads = 2, width = 16, ffn_width = 40, context = 12 }\n"
                         "[train]\nsteps = 4\nglobal_batch_tokens = 40\n"
                         "[data]\ndocument_separator = \".\\n\"\n[checkpoint]\nresume = \"auto\"\n";
  const std::string text = test::write_text(folder.path(), test::small_text(2000));
  const auto train = [&] {
    return run({"train", file, "--set", "data.path=" + text, "--set",
                "output.run_dir=" + folder.path() + "/run"},
               folder.path() + "/report.json");
  };
  const auto first = train(), again = train();
  ASSERT_EQ(first.exit_code, 0) << first.err;
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.report.at("steps_this_process").as_integer(), 0);
  for (const char* key : {"checkpoint", "tokens", "tokens_per_step", "parameter_hash"})
    EXPECT_EQ(again.report.at(key).dump(), first.report.at(key).dump()) << key;
  EXPECT_FALSE(again.report.at("checkpoint").is_null());
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
