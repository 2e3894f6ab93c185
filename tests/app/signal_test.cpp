// Signals at any moment of a run: it saves, exits with 0, and what it saved goes on. SIGQUIT and a
// crash leave flight records; a run whose threads hang ends all the same.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "strait/strategy/finish/kernels.h"
#include "strait/trace/flight_file.h"
#include "tests/app/program.h"
#include "tests/pace.h"
#include "tests/paths.h"

namespace strait {
namespace {

using test::Child;
using test::TemporaryFolder;

constexpr int64_t kSteps = 60;

std::vector<std::string> arguments(const std::string& run_file, const std::string& run_dir,
                                   bool asynchronous, const std::string& json) {
  return {"train",   run_file,
          "--ranks", "2",
          "--set",   "output.run_dir=" + run_dir,
          "--set",   "checkpoint.resume=auto",
          "--set",   "checkpoint.every_steps=7",
          "--set",   "evaluation.every_steps=5",
          "--set",   "train.steps=" + std::to_string(kSteps),
          "--set",   std::string("checkpoint.asynchronous=") + (asynchronous ? "true" : "false"),
          "--json",  json};
}

void wait_for_handlers(Child& child, int number) {
  while (child.running() && !test::handles(child.pid(), number)) test::sleep_seconds(0.0005);
}

Json read_json(const std::string& path) { return Json::parse(read_file(path), path); }

/// One run folder after the other, each trained to its end through as many signals as it takes.
class Chain {
 public:
  Chain(int number, const std::string& folder, const std::string& run_file, double whole,
        const std::string& hash)
      : stream_(5, "signals", static_cast<uint64_t>(number)),
        folder_(folder + "/chain" + std::to_string(number)),
        run_file_(run_file),
        whole_(whole),
        hash_(hash) {
    std::filesystem::create_directories(folder_);
  }

  void run(int signals) {
    while (signals_ < signals) launch(true);
    while (finished_ < runs_) launch(false);  // what the last signal saved goes on to its end
  }
  int signals() const { return signals_; }
  int at_start() const { return at_start_; }

 private:
  void launch(bool disturb) {
    const uint64_t turn = launches_++;
    if (runs_ == finished_) {
      ++runs_;
      stopped_at_ = -1;
    }
    const std::string run_dir = folder_ + "/run" + std::to_string(runs_);
    const std::string json = folder_ + "/report.json", log = folder_ + "/log";
    std::filesystem::remove(json);
    Child child(arguments(run_file_, run_dir, turn % 2 == 0, json), log);
    bool sent = false;
    if (disturb) {
      wait_for_handlers(child, SIGTERM);
      // A fifth of the signals comes while the run starts.
      const bool early = stream_.below(4 * turn, 5) == 0;
      test::sleep_seconds(stream_.uniform(4 * turn + 1) * (early ? 0.05 : whole_));
      const int numbers[] = {SIGTERM, SIGUSR1, SIGUSR2};
      sent = child.running();
      child.signal(numbers[turn % 3]);
      if (turn % 2 == 0) {  // a second one, most often while it saves
        test::sleep_seconds(0.02 * stream_.uniform(4 * turn + 2));
        child.signal(numbers[(turn + 1) % 3]);
      }
    }
    ASSERT_EQ(child.wait(), 0) << read_file(log);
    const Json report = read_json(json);
    const int64_t steps = report.at("steps").as_integer();
    if (stopped_at_ >= 0) {
      EXPECT_EQ(report.at("resumed_from_step").as_integer(), stopped_at_) << read_file(log);
    }
    ASSERT_TRUE(report.at("checkpoint").is_string()) << read_file(log);
    const std::string checkpoint = report.at("checkpoint").as_string();
    EXPECT_TRUE(std::filesystem::exists(checkpoint + "/manifest.json")) << checkpoint;
    stopped_at_ = steps;
    if (sent) ++signals_;
    if (sent && report.at("steps_this_process").as_integer() == 0) ++at_start_;
    if (steps < kSteps) {
      EXPECT_TRUE(sent) << report.at("stopped_by").as_string();
      EXPECT_TRUE(report.at("stopped_by").as_string().starts_with("SIG"));
      return;
    }
    EXPECT_EQ(report.at("parameter_hash").as_string(), hash_);
    EXPECT_EQ(report.at("losses").size(), static_cast<size_t>(kSteps));
    ++finished_;
  }

  const RandomStream stream_;
  const std::string folder_, run_file_;
  const double whole_;
  const std::string hash_;
  uint64_t launches_ = 0;
  int signals_ = 0, at_start_ = 0, runs_ = 0, finished_ = 0;
  int64_t stopped_at_ = -1;
};

/// Settings whose borders are far apart, or under way for many steps.
class SignalsToReplicas : public ::testing::TestWithParam<std::vector<std::string>> {};

TEST_P(SignalsToReplicas, EndARoundInItsMiddleAndItGoesOn) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  const auto train = [&](const std::string& run_dir, int64_t steps) {
    std::vector<std::string> words = {"train", run_file, "--ranks", "2", "--json", json};
    for (const std::string& set :
         {"output.run_dir=" + folder.path() + "/" + run_dir, std::string("placement.preset=ddp"),
          std::string("optimizer.schedule=constant"), std::string("checkpoint.resume=auto"),
          "train.steps=" + std::to_string(steps)})
      words.insert(words.end(), {"--set", set});
    for (const std::string& set : GetParam()) words.insert(words.end(), {"--set", set});
    return words;
  };
  constexpr int64_t kManySteps = 1000000;
  int64_t stopped_at = 0;
  {
    Child child(train("run", kManySteps), log);
    test::wait_for_step(child, folder.path() + "/run");
    child.signal(SIGTERM);
    ASSERT_EQ(child.wait(), 0) << read_file(log);
    const Json report = read_json(json);
    EXPECT_EQ(report.at("stopped_by").as_string(), "SIGTERM");
    stopped_at = report.at("steps").as_integer();
    EXPECT_LT(stopped_at, kManySteps);
    ASSERT_TRUE(report.at("checkpoint").is_string()) << read_file(log);
  }
  const int64_t steps = stopped_at + 2000 - stopped_at % 1000;
  ASSERT_EQ(Child(train("run", steps), log).wait(), 0) << read_file(log);
  const Json resumed = read_json(json);
  EXPECT_EQ(resumed.at("resumed_from_step").as_integer(), stopped_at);
  EXPECT_EQ(resumed.at("steps").as_integer(), steps);
  ASSERT_EQ(Child(train("whole", steps), log).wait(), 0) << read_file(log);
  EXPECT_EQ(resumed.at("parameter_hash").as_string(),
            read_json(json).at("parameter_hash").as_string());
}

INSTANTIATE_TEST_SUITE_P(
    Policies, SignalsToReplicas,
    ::testing::Values(
        std::vector<std::string>{"sync.policy=diloco", "sync.rounds.period_steps=1000000"},
        std::vector<std::string>{"sync.policy=streaming-diloco", "sync.rounds.period_steps=1000",
                                 "sync.rounds.fragments=2", "sync.rounds.delay_steps=400"},
        std::vector<std::string>{"sync.policy=co2", "sync.rounds.period_steps=1000"}));

/// Ctrl-Z and fg, docker pause, Slurm's suspend: no rank is missed for the time.
TEST(Signals, ARunThatStoodStillLongerThanItsDeadlineGoesOn) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  std::vector<std::string> words = {
      "train", test::small_run_file(folder.path()), "--ranks", "2", "--json", json};
  for (const std::string& set :
       {"output.run_dir=" + folder.path() + "/run", std::string("runtime.deadline_seconds=1"),
        std::string("train.steps=1000000")})
    words.insert(words.end(), {"--set", set});
  Child child(words, log);
  test::wait_for_step(child, folder.path() + "/run");
  for (int turn = 0; turn < 3; ++turn) {
    child.stop();
    test::sleep_seconds(2.5);
    child.signal(SIGCONT);
    test::sleep_seconds(0.3);
  }
  ASSERT_TRUE(child.running()) << read_file(log);
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 0) << read_file(log);
  EXPECT_EQ(read_json(json).at("stopped_by").as_string(), "SIGTERM");
}

TEST(Signals, AHundredAtRandomMomentsEachSaveAndExitWithZero) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  Child whole(arguments(run_file, folder.path() + "/whole", true, json), log);
  wait_for_handlers(whole, SIGTERM);
  const auto began = std::chrono::steady_clock::now();
  ASSERT_EQ(whole.wait(), 0) << read_file(log);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const std::string hash = read_json(json).at("parameter_hash").as_string();
  std::vector<std::unique_ptr<Chain>> chains;
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number)
    chains.push_back(std::make_unique<Chain>(number, folder.path(), run_file, seconds, hash));
  for (auto& chain : chains) threads.emplace_back([&chain] { chain->run(25); });
  for (std::thread& thread : threads) thread.join();
  int signals = 0, at_start = 0;
  for (const auto& chain : chains) {
    signals += chain->signals();
    at_start += chain->at_start();
  }
  EXPECT_GE(signals, 100);
  EXPECT_GE(at_start, 1);  // some came before the first step
}

/// Whether the process has `number` wait.
bool holds(pid_t process, int number) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with("SigBlk:"))
      return (std::stoull(line.substr(7), nullptr, 16) >> (number - 1) & 1) != 0;
  return false;
}

TEST(Signals, BeforeMainTheyWaitForTheRun) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  Child child(arguments(run_file, folder.path() + "/run", true, json), log);
  while (child.running() && !holds(child.pid(), SIGTERM)) test::sleep_seconds(0.0005);
  ASSERT_FALSE(test::handles(child.pid(), SIGTERM)) << "seen too late";
  child.signal(SIGTERM);
  ASSERT_EQ(child.wait(), 0) << read_file(log);
  const Json report = read_json(json);
  EXPECT_EQ(report.at("stopped_by").as_string(), "SIGTERM");
  EXPECT_EQ(report.at("steps").as_integer(), 0);
}

TEST(Signals, OtherCommandsEndByThem) {
  std::signal(SIGTERM, SIG_DFL);  // runs in this process leave it ignored, which children inherit
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log";
  Child child({"bench", "gemm", "--m", "4096", "--n", "4096", "--k", "4096"}, log);
  while (child.running() && !holds(child.pid(), SIGTERM)) test::sleep_seconds(0.0005);
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 128 + SIGTERM) << read_file(log);
}

TEST(Signals, BeforeTheFirstStepANewRunSavesStepZero) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  const std::string run_dir = folder.path() + "/run";
  Child child(arguments(run_file, run_dir, true, json), log);
  wait_for_handlers(child, SIGTERM);
  child.signal(SIGTERM);
  ASSERT_EQ(child.wait(), 0) << read_file(log);
  const Json report = read_json(json);
  EXPECT_EQ(report.at("stopped_by").as_string(), "SIGTERM");
  EXPECT_EQ(report.at("steps").as_integer(), 0);
  EXPECT_TRUE(std::filesystem::exists(run_dir + "/checkpoints/step-00000000/manifest.json"));
  ASSERT_EQ(Child(arguments(run_file, run_dir, true, json), log).wait(), 0) << read_file(log);
  EXPECT_EQ(read_json(json).at("resumed_from_step").as_integer(), 0);
  EXPECT_EQ(read_json(json).at("steps").as_integer(), kSteps);
}

/// A long run as a child, ready to be asked or killed.
class LongRun {
 public:
  LongRun() : run_dir_(folder_.path() + "/run") {
    std::vector<std::string> all =
        arguments(test::small_run_file(folder_.path()), run_dir_, true, folder_.path() + "/json");
    all.insert(all.end(), {"--set", "train.steps=1000000"});
    child_ = std::make_unique<Child>(all, folder_.path() + "/log");
    while (child_->running() && !std::filesystem::exists(run_dir_ + "/checkpoints/step-00000007"))
      test::sleep_seconds(0.001);
  }
  Child& child() { return *child_; }
  const std::string& run_dir() const { return run_dir_; }
  void wait_for_records(int64_t ranks) {
    const double end = now_seconds() + 120;
    while (now_seconds() < end) {
      bool all = true;
      for (int64_t rank = 0; rank < ranks; ++rank)
        all = all && std::filesystem::exists(trace::flight_path(run_dir_, rank));
      if (all) return;
      test::sleep_seconds(0.001);
    }
    ADD_FAILURE() << "no flight records";
  }

 private:
  const TemporaryFolder folder_;
  const std::string run_dir_;
  std::unique_ptr<Child> child_;
};

void expect_records(const std::string& run_dir, const std::string& kind) {
  const auto files = trace::read_flight(run_dir);
  ASSERT_EQ(files.size(), 2u);
  for (const auto& file : files) {
    ASSERT_TRUE(file);
    EXPECT_EQ(file->reason.kind, kind);
    EXPECT_GT(file->entries.size(), 100u);
    EXPECT_LE(file->entries.size(), 1000u);
    for (size_t i = 1; i < file->entries.size(); ++i)
      EXPECT_GT(file->entries[i].number, file->entries[i - 1].number);
  }
}

TEST(Signals, SigquitWritesTheFlightRecordsAndTheRunGoesOn) {
  LongRun run;
  run.child().signal(SIGQUIT);
  run.wait_for_records(2);
  expect_records(run.run_dir(), "request");
  EXPECT_TRUE(run.child().running());
  run.child().signal(SIGTERM);
  EXPECT_EQ(run.child().wait(), 0);
}

TEST(Signals, ACrashLeavesTheFlightRecords) {
  LongRun run;
  run.child().signal(SIGABRT);
  run.child().wait();
  expect_records(run.run_dir(), "crash");
}

/// strait train with hooks, as the whole program: arguments to exit code.
int run_with(const std::vector<std::string>& arguments, const train::Hooks& hooks) {
  cli::CommandTable table = cli::program_commands();
  table["train"] = [&](const cli::Command& command, cli::Output& output) {
    return app::train_with(command, output, hooks);
  };
  return cli::run_command(arguments, table);
}

std::string deadline_setting(double seconds) {
  return "runtime.deadline_seconds=" + std::to_string(seconds);
}

TEST(Hang, ARankThatStallsEndsTheRunWithFourAndIsNamedInTheReport) {
  const TemporaryFolder folder;
  const std::string json = folder.path() + "/report.json", run_dir = folder.path() + "/run";
  const double deadline = test::deadline_here(0.2);
  train::Hooks hooks;
  hooks.before_op = [&](int64_t rank, const runtime::Instance& instance) {
    if (rank == 1 && instance.step == 3 && instance.op->kernel == &strategy::kUpdate)
      test::sleep_seconds(1.5 * deadline);  // per update
  };
  const std::vector<std::string> all = {"train",   test::small_run_file(folder.path()),
                                        "--ranks", "2",
                                        "--set",   "output.run_dir=" + run_dir,
                                        "--set",   deadline_setting(deadline),
                                        "--json",  json};
  EXPECT_EQ(run_with(all, hooks), 4);
  const Json error = read_json(json).at("error");
  EXPECT_EQ(error.at("kind").as_string(), "timeout");
  EXPECT_EQ(error.at("rank").as_integer(), 1);
  EXPECT_EQ(error.at("step").as_integer(), 4);  // the number that its metrics would have
  EXPECT_NE(error.at("operation").as_string().find("update"), std::string::npos);
  const test::Ran report = test::run({"report", run_dir}, folder.path() + "/report2.json");
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.report.at("verdict").at("rank").as_integer(), 1);
  EXPECT_EQ(report.report.at("verdict").at("step").as_integer(), 4);
  EXPECT_EQ(report.report.at("verdict").at("operation").as_string(),
            error.at("operation").as_string());
}

TEST(Signals, ABenchmarkOfCheckpointsRemovesItsFolder) {
  const TemporaryFolder folder;
  const RandomStream stream(5, "signals to benchmarks");
  const std::string disk = folder.path() + "/disk", log = folder.path() + "/log";
  std::filesystem::create_directories(disk);
  int turn = 0;
  for (const int number : {SIGTERM, SIGINT, SIGTERM, SIGINT}) {
    Child bench({"bench", "checkpoint", "--folder", disk, "--bytes", "67108864"}, log);
    while (bench.running() && std::filesystem::is_empty(disk)) test::sleep_seconds(0.001);
    test::sleep_seconds(0.2 * stream.uniform(static_cast<uint64_t>(turn++)));
    ASSERT_TRUE(bench.running()) << read_file(log);
    bench.signal(number);
    EXPECT_EQ(bench.wait(), 128 + number) << read_file(log);
    EXPECT_TRUE(std::filesystem::is_empty(disk)) << turn;
  }
}

/// A folder that the process of a death test shares with this one; such a process ends without
/// destructors.
class BuildFolder {
 public:
  BuildFolder() {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~BuildFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_ =
      test::in_build(::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST(HangDeathTest, ARankThatNeverComesBackDoesNotKeepTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const BuildFolder folder;
  train::Hooks hooks;
  hooks.before_op = [](int64_t rank, const runtime::Instance& instance) {
    while (rank == 1 && instance.step == 3) test::sleep_seconds(1);
  };
  const std::vector<std::string> all = {"train",   test::small_run_file(folder.path()),
                                        "--ranks", "2",
                                        "--set",   "output.run_dir=" + folder.path() + "/run",
                                        "--set",   deadline_setting(test::deadline_here(0.2))};
  const double began = now_seconds();
  EXPECT_EXIT(run_with(all, hooks), ::testing::ExitedWithCode(4), "rank 1 fell behind first");
  EXPECT_LT(now_seconds() - began, 120);  // start of the program, the deadline, 3 s of grace
}

TEST(HangDeathTest, ADiskThatHangsInASaveEndsTheRunAndKeepsTheCheckpointsBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const BuildFolder folder;
  const std::string run_file = test::small_run_file(folder.path()),
                    run_dir = folder.path() + "/run";
  const std::vector<std::string> all = {"train",   run_file,
                                        "--ranks", "2",
                                        "--set",   "output.run_dir=" + run_dir,
                                        "--set",   "checkpoint.resume=auto",
                                        "--set",   "checkpoint.every_steps=5",
                                        "--set",   "checkpoint.asynchronous=false",
                                        "--set",   deadline_setting(test::deadline_here(0.5))};
  train::Hooks hooks;
  hooks.during_save = [](int64_t rank, int64_t step) {
    while (rank == 1 && step == 10) test::sleep_seconds(1);
  };
  EXPECT_EXIT(run_with(all, hooks), ::testing::ExitedWithCode(4), "save of step 10: rank 1");
  const std::string checkpoints = run_dir + "/checkpoints";
  EXPECT_TRUE(std::filesystem::exists(checkpoints + "/step-00000005/manifest.json"));
  EXPECT_FALSE(std::filesystem::exists(checkpoints + "/step-00000010"));
}

}  // namespace
}  // namespace strait
