// Ranks that are lost or that stall anywhere in a step: every survivor names the right rank,
// operation and step, within the deadline and a little more, and none hangs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "strait/base/clock.h"
#include "strait/trace/flight_file.h"
#include "tests/pace.h"
#include "tests/train/instances.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

constexpr double kDeadline = 0.5;  // on an idle machine
constexpr int kRuns = 200;
constexpr int kAtOnce = 8;  // they sleep most of the time

/// One fault: where it strikes.
struct Strike {
  int number = 0;
  int64_t ranks = 0, rank = 0, step = 0;
  std::string placement, operation;
  double deadline = kDeadline;
  bool lost = false;   // otherwise it stalls
  int occurrence = 0;  // of the operation among the compute instances of the step, when it stalls
  double stall_seconds() const { return lost ? 0 : 2.4 * deadline; }
};

/// Draws the fault of run `number` from the job's own program.
Strike draw(int number, const Job& job, const std::string& placement) {
  const RandomStream stream(2024, "strike", static_cast<uint64_t>(number));
  Strike strike;
  strike.number = number;
  strike.placement = placement;
  strike.ranks = job.design.batch.ranks;
  strike.rank = static_cast<int64_t>(stream.below(0, static_cast<uint64_t>(strike.ranks)));
  strike.step = 1 + static_cast<int64_t>(stream.below(1, 3));
  strike.lost = number % 2 == 0;
  const std::vector<test::Instance> instances = test::instances_of(job.design.steady().front());
  // What lies behind the last transfer is missed in the step after: it is left out.
  size_t last = 0;
  for (size_t i = 0; i < instances.size(); ++i)
    if (instances[i].transfer && !instances[i].alone) last = i;
  std::vector<size_t> fitting;
  for (size_t i = 0; i < last; ++i)
    if (instances[i].transfer == strike.lost && !instances[i].alone) fitting.push_back(i);
  const size_t chosen = fitting[stream.below(2, fitting.size())];
  strike.operation = instances[chosen].text;
  for (size_t i = 0; i < chosen; ++i)
    if (!instances[i].transfer) ++strike.occurrence;
  return strike;
}

/// How a run ended.
struct Ending {
  double seconds = 0;  // from the strike to the error of the run
  std::string error;
  ErrorPlace place;
  int exit_code = 0;
};

class StrikeRun {
 public:
  StrikeRun(const Job& job, const Strike& strike) : job_(job), strike_(strike) {}

  Ending run() {
    train::Hooks hooks;
    if (strike_.lost) {
      hooks.faults.lost_rank = strike_.rank;
      hooks.faults.lost_step = strike_.step;
      hooks.faults.lost_operation = strike_.operation;
    }
    hooks.before_op = [this](int64_t rank, const runtime::Instance& instance) {
      if (rank != strike_.rank || instance.step + 1 != strike_.step) return;
      if (instance.program->step_kind != strategy::kSteady) return;
      if (struck_ == 0) struck_ = now_seconds();  // of a loss: not later than this
      if (strike_.lost || count_++ != strike_.occurrence) return;
      struck_ = now_seconds();
      std::this_thread::sleep_for(std::chrono::duration<double>(strike_.stall_seconds()));
    };
    const std::atomic<int> no_signal{0};
    train::Outcome outcome;
    Ending ending;
    try {
      train::train(job_, {}, no_signal, outcome, hooks);
    } catch (const Error& error) {
      ending.error = error.what();
      ending.place = error.place();
      ending.exit_code = static_cast<int>(error.code());
    }
    ending.seconds = now_seconds() - struck_.load();
    return ending;
  }

 private:
  const Job& job_;
  const Strike& strike_;
  std::atomic<double> struck_{0};
  int count_ = 0;
};

std::string describe(const Strike& strike) {
  return fmt::format("run {}: {} on {} ranks, rank {} {} at {} of step {}", strike.number,
                     strike.placement, strike.ranks, strike.rank, strike.lost ? "lost" : "stalled",
                     strike.operation, strike.step);
}

void check_place(const ErrorPlace& place, const Strike& strike, const std::string& who) {
  EXPECT_EQ(place.rank.value_or(-1), strike.rank) << who;
  EXPECT_EQ(place.operation.value_or(""), strike.operation) << who;
  EXPECT_EQ(place.step.value_or(-1), strike.step) << who;
}

void strike_once(int number, const std::string& folder) {
  const std::vector<std::string> placements = {"ddp", "zero1", "zero2", "zero3", "hsdp"};
  const std::string placement = placements[number % placements.size()];
  const int64_t ranks = placement == "hsdp" ? 4 : std::vector<int64_t>{2, 3, 4}[number / 5 % 3];
  const std::string run_dir = folder + "/run" + std::to_string(number);
  const double deadline = test::deadline_here(kDeadline);
  std::vector<std::string> sets = {
      "placement.preset=" + placement, "train.steps=3",
      "runtime.deadline_seconds=" + std::to_string(deadline),
      std::string("checkpoint.asynchronous=") + (number % 3 == 0 ? "true" : "false")};
  if (placement == "hsdp") {
    sets.push_back(
        "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 200.0, latency_microseconds "
        "= 2.0 }, { name = \"world\", size = 0, gb_per_second = 25.0, latency_microseconds = 10.0 "
        "}]");
  }
  Run run = test::small_run(folder, sets);
  run.output.run_dir = run_dir;
  const Job job = make_job(run, ranks);
  Strike strike = draw(number, job, placement);
  strike.deadline = deadline;
  const std::string what = describe(strike);
  const Ending ending = StrikeRun(job, strike).run();
  EXPECT_EQ(ending.exit_code, 4) << what << ": " << ending.error;
  check_place(ending.place, strike, what + ": " + ending.error);
  EXPECT_LT(ending.seconds, std::max(deadline, strike.stall_seconds()) + 4 * deadline) << what;
  const auto files = trace::read_flight(run_dir);
  ASSERT_EQ(static_cast<int64_t>(files.size()), ranks) << what;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    ASSERT_TRUE(files[rank]) << what;
    const std::string who =
        fmt::format("{}, as told by rank {}: {}", what, rank, files[rank]->reason.message);
    if (!strike.lost || rank != strike.rank) check_place(files[rank]->reason.place, strike, who);
    EXPECT_FALSE(files[rank]->entries.empty()) << who;
  }
  const std::optional<trace::Verdict> verdict = trace::judge_flight(files);
  ASSERT_TRUE(verdict) << what;
  EXPECT_EQ(verdict->rank, strike.rank) << what << ": " << verdict->text;
  EXPECT_EQ(verdict->place.operation, strike.operation) << what << ": " << verdict->text;
  EXPECT_EQ(verdict->place.step, strike.step) << what << ": " << verdict->text;
  std::filesystem::remove_all(run_dir);
}

TEST(Faults, TwoHundredRunsNameTheRankTheOperationAndTheStep) {
  const test::TemporaryFolder folder;
  test::write_text(folder.path(), test::small_text(2000));
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kAtOnce; ++thread)
    threads.emplace_back([&] {
      for (int number = next++; number < kRuns; number = next++) strike_once(number, folder.path());
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace strait
