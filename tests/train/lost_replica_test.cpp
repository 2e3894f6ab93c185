// A replica that fails anywhere in rounds: it is named, and the run that goes on from the last
// checkpoint ends as one that nobody disturbed.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "strait/trace/flight_file.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using ::testing::HasSubstr;
using Sets = std::vector<std::string>;

constexpr int64_t kRanks = 4;  // two replicas of two
constexpr int kFailures = 100, kAtOnce = 4;

class Failure : public Error {
 public:
  explicit Failure(const ErrorPlace& place)
      : Error(ExitCode::kInternal, "Failure", "it is struck", place) {}
};

/// A policy, and the hash of an undisturbed run.
struct Case {
  Sets sets;
  std::string hash;
  int64_t instances = 0;  // operations of a rank in the whole run
};

Sets sets_of(const std::string& policy, const Sets& more) {
  Sets sets = {"sync.policy=" + policy,      "sync.replica=2",
               "sync.rounds.period_steps=6", "placement.preset=zero1",
               "train.global_batch_size=8",  "train.steps=14",
               "checkpoint.every_steps=4",   "checkpoint.asynchronous=false",
               "checkpoint.resume=auto",     "runtime.deadline_seconds=20"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

class LostReplica : public test::MeshRuns {
 protected:
  LostReplica() {
    add("diloco", {});
    add("streaming-diloco", {"sync.rounds.fragments=2", "sync.rounds.delay_steps=2"});
    add("streaming-diloco", {"sync.rounds.fragments=3", "train.clip_norm=0",
                             "optimizer.in_backward=true", "sync.outer.codec=int4/128"});
    add("co2", {"sync.rounds.eager=true"});
  }

  void add(const std::string& policy, const Sets& more) {
    Case c{sets_of(policy, more), "", 0};
    std::atomic<int64_t> count{0};
    train::Hooks hooks;
    hooks.before_op = [&](int64_t rank, const runtime::Instance&) { count += rank == 0; };
    c.hash = run(c, next_folder(), hooks).parameter_hash;
    c.instances = count;
    cases_.push_back(std::move(c));
  }

  train::Outcome run(const Case& c, const std::string& run_dir, const train::Hooks& hooks = {}) {
    strait::Run run = test::small_run(folder_.path(), c.sets);
    run.output.run_dir = run_dir;
    const std::atomic<int> no_signal{0};
    train::Outcome outcome;
    train::train(make_job(run, kRanks), {}, no_signal, outcome, hooks);
    return outcome;
  }

  /// The error of a run in which `rank` fails before its operation of that number.
  std::string fail(const Case& c, const std::string& run_dir, int64_t rank, int64_t number,
                   std::string& kind) {
    std::atomic<int64_t> count{0};
    train::Hooks hooks;
    hooks.before_op = [&](int64_t of_rank, const runtime::Instance& instance) {
      if (of_rank != rank || count++ != number) return;
      kind = instance.program->step_kind;
      ErrorPlace place;
      place.rank = rank;
      throw Failure(place);
    };
    try {
      run(c, run_dir, hooks);
    } catch (const Error& error) {
      EXPECT_EQ(error.place().rank.value_or(-1), rank) << error.what();
      return error.what();
    }
    return "";
  }

  void fail_and_go_on(int number) {
    const Case& c = cases_[static_cast<size_t>(number) % cases_.size()];
    const RandomStream stream(17, "lost replica", static_cast<uint64_t>(number));
    const auto rank = static_cast<int64_t>(stream.below(0, kRanks));
    const auto at = static_cast<int64_t>(stream.below(1, static_cast<uint64_t>(c.instances)));
    const std::string run_dir = fmt::format("{}/failure{}", folder_.path(), number);
    std::string kind;
    const std::string error = fail(c, run_dir, rank, at, kind);
    const std::string what =
        fmt::format("failure {}: rank {} before its operation {} of {}, in {}: {}", number, rank,
                    at, c.instances, kind, error);
    EXPECT_THAT(error, HasSubstr("it is struck")) << what;
    EXPECT_EQ(run(c, run_dir).parameter_hash, c.hash) << what;
    std::filesystem::remove_all(run_dir);
    const std::lock_guard<std::mutex> lock(mutex_);
    ++struck_[kind];
  }

  std::vector<Case> cases_;
  std::mutex mutex_;
  std::map<std::string, int> struck_;  // by kind of program
};

TEST_F(LostReplica, AHundredFailuresEndAsAnUndisturbedRun) {
  std::atomic<int> next{0};
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < kAtOnce; ++thread)
    threads.emplace_back([&] {
      for (int number = next++; number < kFailures; number = next++) fail_and_go_on(number);
    });
  threads.clear();
  for (const auto& [kind, times] : struck_) std::printf("%4d in %s\n", times, kind.c_str());
  EXPECT_GT(struck_.size(), 5u) << "steps, launches, landings";
}

/// In every program of a border: at its first operation, and at its last.
TEST_F(LostReplica, AtALaunchUnderWayAndAtALanding) {
  const Case& c = cases_[1];
  for (const std::string wanted : {"launch-0", "launch-1", "land-0", "land-1"}) {
    std::vector<int64_t> numbers;  // of the operations of rank 1 in such programs
    int64_t number = 0;
    train::Hooks hooks;
    hooks.before_op = [&](int64_t rank, const runtime::Instance& instance) {
      if (rank != 1) return;
      if (instance.program->step_kind == wanted) numbers.push_back(number);
      ++number;
    };
    run(c, next_folder(), hooks);
    ASSERT_FALSE(numbers.empty()) << wanted;
    // The operation behind the last one: what was launched is under way.
    for (const int64_t at : {numbers.front(), numbers[numbers.size() / 2], numbers.back() + 1}) {
      std::string kind;
      const std::string run_dir = next_folder();
      EXPECT_THAT(fail(c, run_dir, 1, at, kind), HasSubstr("it is struck"));
      EXPECT_EQ(run(c, run_dir).parameter_hash, c.hash) << wanted << ", " << at;
    }
  }
}

}  // namespace
}  // namespace strait
