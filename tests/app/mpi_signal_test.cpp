// Signals to one rank under mpirun, or to mpirun itself: all ranks save and exit with 0, and what
// they saved goes on. STRAIT_MPI_SIGNAL_RUNS=100 sends as many.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "strait/base/random.h"
#include "tests/app/mpi_job.h"

namespace strait {
namespace {

using test::MpiJob;
using test::TemporaryFolder;

/// One run folder that is stopped and goes on, again and again. Every chain has another placement;
/// its saves and evaluations come so often that many of the signals meet one.
class Chain {
 public:
  Chain(int number, const std::string& folder, const std::string& run_file)
      : number_(number),
        stream_(5, "mpi signals", static_cast<uint64_t>(number)),
        ranks_(2 + number % 3),
        folder_(folder + "/chain" + std::to_string(number)),
        run_file_(run_file) {}

  void launch(int turn) {
    const std::string folder = folder_ + "/" + std::to_string(turn);
    std::filesystem::create_directories(folder);
    const std::string json = folder + "/report.json";
    MpiJob job(arguments(turn, json), ranks_, folder, turn % 3 == 0);
    const auto processes = job.find_all();
    const auto draw = static_cast<uint64_t>(4 * turn);
    // A quarter of the signals comes while the run starts: rank 0 has begun to read its run file.
    const bool early = stream_.below(draw, 4) == 0;
    early ? wait_for_handlers(job, processes)
          : test::wait_for_step(job.launcher(), folder_ + "/run");
    test::sleep_seconds(stream_.uniform(draw + 1) * (early ? 0.05 : 0.5));
    ASSERT_TRUE(job.launcher().running()) << read_file(folder + "/log");
    ASSERT_EQ(processes.size(), static_cast<size_t>(ranks_));
    const auto rank = static_cast<int64_t>(stream_.below(draw + 2, static_cast<uint64_t>(ranks_)));
    const bool to_launcher = !early && stream_.below(draw + 3, 5) == 0;
    const int numbers[] = {SIGTERM, SIGUSR1, SIGUSR2};
    const int signal = to_launcher ? SIGUSR1 : numbers[turn % 3];
    ::kill(to_launcher ? job.launcher().pid() : processes.at(rank), signal);
    const double began = now_seconds();
    ASSERT_TRUE(job.ends_within(30)) << stuck(job) << read_file(folder + "/log");
    seconds_ = std::max(seconds_, now_seconds() - began);
    ASSERT_EQ(job.launcher().wait(), 0) << read_file(folder + "/log");
    EXPECT_TRUE(job.find().empty());
    check(Json::parse(read_file(json), json), signal, read_file(folder + "/log"));
  }
  int signals() const { return signals_; }
  int at_start() const { return at_start_; }
  double seconds() const { return seconds_; }

 private:
  std::vector<std::string> arguments(int turn, const std::string& json) const {
    const char* placements[] = {"zero3", "mics", "ddp", "hsdp", "zero2", "zero1"};
    std::vector<std::string> all = {"train", run_file_, "--json", json};
    for (const std::string& set :
         {"output.run_dir=" + folder_ + "/run",
          std::string("placement.preset=") + placements[number_ % 6],
          "train.global_batch_size=" + std::to_string(2 * ranks_),
          std::string("train.micro_batch_size=2"), std::string("train.steps=1000000"),
          std::string("runtime.deadline_seconds=10"), std::string("checkpoint.resume=auto"),
          std::string("checkpoint.every_steps=7"), std::string("evaluation.every_steps=11"),
          std::string("checkpoint.asynchronous=") + (turn % 2 == 0 ? "true" : "false")})
      all.insert(all.end(), {"--set", set});
    return all;
  }

  void wait_for_handlers(MpiJob& job, const std::map<int64_t, pid_t>& processes) {
    for (const auto& [rank, process] : processes)
      while (job.launcher().running() && !test::handles(process, SIGTERM))
        test::sleep_seconds(0.001);
  }

  /// The flight records of a run that does not end.
  std::string stuck(MpiJob& job) const {
    for (const auto& [rank, process] : job.find()) ::kill(process, SIGQUIT);
    test::sleep_seconds(1);
    const test::Ran report = test::run({"report", folder_ + "/run"}, folder_ + "/report.json");
    return "the run does not end\n" + report.out + "\n";
  }

  void check(const Json& report, int signal, const std::string& log) {
    const int64_t steps = report.at("steps").as_integer();
    const char* name = signal == SIGTERM ? "SIGTERM" : signal == SIGUSR1 ? "SIGUSR1" : "SIGUSR2";
    EXPECT_EQ(report.at("stopped_by").as_string(), name);
    ASSERT_TRUE(report.at("checkpoint").is_string()) << log;
    if (stopped_at_ >= 0) {
      EXPECT_EQ(report.at("resumed_from_step").as_integer(), stopped_at_) << log;
    }
    EXPECT_EQ(report.at("steps_this_process").as_integer(),
              steps - std::max<int64_t>(stopped_at_, 0));
    EXPECT_EQ(report.at("losses").size(), static_cast<size_t>(steps));
    const std::string checkpoint = report.at("checkpoint").as_string();
    const test::Ran inspected = test::run({"inspect", checkpoint}, folder_ + "/inspected.json");
    EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
    EXPECT_TRUE(inspected.report.at("complete").as_bool()) << checkpoint;
    EXPECT_EQ(inspected.report.at("step").as_integer(), steps);
    if (report.at("steps_this_process").as_integer() == 0) ++at_start_;
    stopped_at_ = steps;
    ++signals_;
  }

  const int number_;
  const RandomStream stream_;
  const int64_t ranks_;
  const std::string folder_, run_file_;
  int64_t stopped_at_ = -1;
  int signals_ = 0, at_start_ = 0;
  double seconds_ = 0;
};

TEST(MpiSignals, AtRandomMomentsEachSavesAndExitsWithZero) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const char* text = std::getenv("STRAIT_MPI_SIGNAL_RUNS");
  const int wanted = text == nullptr ? 8 : std::atoi(text);
  const int chains_count = wanted >= 24 ? 6 : 2, turns = (wanted + chains_count - 1) / chains_count;
  std::vector<std::unique_ptr<Chain>> chains;
  for (int number = 0; number < chains_count; ++number)
    chains.push_back(std::make_unique<Chain>(number, folder.path(), run_file));
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 2; ++worker)
    threads.emplace_back([&] {
      for (size_t at = next++; at < chains.size(); at = next++)
        for (int turn = 0; turn < turns && !::testing::Test::HasFatalFailure(); ++turn)
          chains[at]->launch(turn);
    });
  for (std::thread& thread : threads) thread.join();
  int signals = 0, at_start = 0;
  double seconds = 0;
  for (const auto& chain : chains) {
    signals += chain->signals();
    at_start += chain->at_start();
    seconds = std::max(seconds, chain->seconds());
  }
  std::printf(
      "%d signals, %d before the first step of a process, the slowest end %.2f s after it\n",
      signals, at_start, seconds);
  EXPECT_EQ(signals, chains_count * turns);
}

/// As by the suspension of a job: every process, not all at the same moment.
TEST(MpiSignals, ARunThatStoodStillLongerThanItsDeadlineGoesOn) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  const auto words = test::small_training(folder.path(), json,
                                          {"runtime.deadline_seconds=1", "train.steps=1000000"});
  MpiJob job(words, 2, folder.path(), false);
  const auto processes = job.find_all();
  ASSERT_EQ(processes.size(), 2u) << read_file(log);
  test::wait_for_step(job.launcher(), folder.path() + "/run");
  for (int turn = 0; turn < 3; ++turn) {
    for (const auto& [rank, process] : processes) ::kill(process, SIGSTOP);
    test::sleep_seconds(2.5);
    for (const auto& [rank, process] : processes) ::kill(process, SIGCONT);
    test::sleep_seconds(0.3);
  }
  ASSERT_TRUE(job.launcher().running()) << read_file(log);
  ::kill(processes.at(0), SIGUSR1);
  ASSERT_TRUE(job.ends_within(30)) << read_file(log);
  EXPECT_EQ(job.launcher().wait(), 0) << read_file(log);
}

/// Processes with `text` among their arguments, but for `other`.
std::vector<pid_t> processes_with(const std::string& text, pid_t other) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const pid_t process = std::stoi(name);
    if (process != other && test::proc_text(process, "cmdline").find(text) != std::string::npos)
      found.push_back(process);
  }
  return found;
}

TEST(MpiSignals, ABenchmarkTakesItsRanksWithIt) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log";
  test::Child bench(
      {"bench", "collective", "--backend", "mpi", "--ranks", "2", "--bytes", "268435456"}, log);
  const std::string mark = "/strait-bench-" + std::to_string(bench.pid());
  while (bench.running() && processes_with(mark, bench.pid()).size() < 3) test::sleep_seconds(0.02);
  bench.signal(SIGTERM);
  EXPECT_EQ(bench.wait(), 128 + SIGTERM) << read_file(log);
  EXPECT_TRUE(processes_with(mark, bench.pid()).empty());  // mpirun and its ranks
}

}  // namespace
}  // namespace strait
