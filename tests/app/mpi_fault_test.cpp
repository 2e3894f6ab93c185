// Ranks under mpirun that are killed or stopped anywhere in a run: the others end in time, and all
// name that rank with the operation and the step in which it was lost. Run n is the same run every
// time: STRAIT_MPI_FAULT_RUNS=200 makes as many, STRAIT_MPI_FAULT_RUN=17 makes run 17 alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "strait/base/random.h"
#include "strait/trace/flight_file.h"
#include "tests/app/mpi_job.h"
#include "tests/fault_ranks/strike.h"
#include "tests/pace.h"
#include "tests/paths.h"
#include "tests/train/instances.h"

namespace strait {
namespace {

using test::MpiJob;
using test::Strike;
using test::TemporaryFolder;
using ::testing::HasSubstr;
using trace::FlightFile;

constexpr double kDeadline = 2;  // on an idle machine
constexpr int64_t kSteps = 5;

struct Place {
  int64_t rank = -1, step = -1;
  std::string operation;
  bool operator==(const Place&) const = default;
};

Place place_of(const FlightFile& file) {
  const ErrorPlace& place = file.reason.place;
  return {place.rank.value_or(-1), place.step.value_or(-1), place.operation.value_or("")};
}

std::string text_of(const Place& place) {
  return "rank " + std::to_string(place.rank) + " step " + std::to_string(place.step) + " \"" +
         place.operation + "\"";
}

/// Operations are named by their first characters in the memory that ranks share.
bool names(const std::string& name, const std::string& operation) {
  return name.ends_with("..") ? operation.starts_with(name.substr(0, name.size() - 2))
                              : operation == name;
}

/// Which runs: ranks along data in placements, the same on several hosts, or stages of pipelines.
struct Runs {
  std::string name = "mpi faults";
  int64_t hosts = 1;
  bool stages = false;
};

/// What a run of a number does, drawn from the number alone.
struct Draw {
  Draw(int the_number, const Runs& runs)
      : number(the_number),
        hosts(runs.hosts),
        stream(2026, runs.name, static_cast<uint64_t>(the_number)),
        ranks(hosts > 1 ? 4 : 2 + number / 6 % 3),
        stops(stream.below(0, 2) == 1),
        continues(stream.below(1, 2) == 1),
        held(stream.below(2, 2) == 1),
        asynchronous(stream.below(3, 2) == 1) {
    const char* placements[] = {"zero3", "ddp", "zero1", "hsdp", "zero2", "mics"};
    placement = placements[number % 6];
    const char* kinds[] = {"compute", "transfer", "compute", "transfer",
                           "compute", "transfer", "save",    "moment"};
    kind = kinds[stream.below(4, 8)];
    lost = static_cast<int64_t>(stream.below(5, static_cast<uint64_t>(ranks)));
    if (runs.stages) pipeline();
  }

  /// As many stages as ranks, or half as many and every stage twice.
  void pipeline() {
    const char* orders[] = {"1f1b",           "zero-bubble-h1", "interleaved", "gpipe",
                            "zero-bubble-h2", "1f1b",           "interleaved"};
    order = orders[number % 7];
    stages = ranks == 4 && number % 2 == 0 ? 2 : ranks;
    placement = stages < ranks ? "zero1" : "ddp";
  }

  /// Of the rank in the mesh, as messages have it; "" without stages.
  std::string position() const {
    if (stages == 1) return "";
    const auto place = [](int64_t at, int64_t size) {
      return std::to_string(at) + " of " + std::to_string(size);
    };
    const int64_t data = ranks / stages;
    return "rank " + std::to_string(lost) + " is stage " + place(lost / data, stages) +
           (data > 1 ? ", data " + place(lost % data, data) : "");
  }

  const int number;
  const int64_t hosts;
  const RandomStream stream;
  const int64_t ranks;
  const bool stops;      // SIGSTOP; SIGKILL otherwise
  const bool continues;  // a stopped rank is woken when the others have gone, not killed
  const bool held;       // struck when the other ranks wait for it
  const bool asynchronous;
  std::string placement, kind, order;
  int64_t lost = 0, stages = 1;
};

class FaultRun {
 public:
  FaultRun(int number, const Runs& runs, const std::string& folder, const std::string& run_file)
      : draw_(number, runs),
        folder_(folder + "/run" + std::to_string(number)),
        run_dir_(folder_ + "/run"),
        run_file_(run_file) {
    std::filesystem::create_directories(folder_);
    strike_ = draw_strike();
  }

  void run() {
    SCOPED_TRACE(what());
    const bool moment = draw_.kind == "moment";
    std::vector<std::string> arguments = {folder_ + "/strike.json", "train", run_file_};
    for (const std::string& set : settings(run_dir_, moment ? 100000 : kSteps))
      arguments.insert(arguments.end(), {"--set", set});
    arguments.insert(arguments.end(), {"--json", folder_ + "/report.json"});
    write_file_atomically(folder_ + "/strike.json", strike_.json().dump());
    MpiJob job(arguments, draw_.ranks, folder_, with_codes(), test::in_build("tests/fault_ranks"),
               {.hosts = draw_.hosts});
    std::map<int64_t, pid_t> processes = job.find_all();
    ASSERT_EQ(processes.size(), static_cast<size_t>(draw_.ranks)) << log();
    write_file_atomically(folder_ + "/found", "");
    const pid_t lost = processes[draw_.lost];
    if (moment)
      strike_from_outside(job, lost);
    else
      wait_for_strike(job);
    ASSERT_GT(at_, 0) << "it was not struck\n" << log();
    processes.erase(draw_.lost);
    job.wait_for_end(processes, at_ + allowed() + 3 - now_seconds());
    seconds_ = now_seconds() - at_;
    EXPECT_LE(seconds_, allowed()) << log();
    if (draw_.stops) ::kill(lost, draw_.continues ? SIGCONT : SIGKILL);
    EXPECT_LT(job.wait_for_end({{draw_.lost, lost}}, 15), 15) << "the lost rank stays";
    // Across hosts Open MPI's mpirun may wait for ever after a recovery; its lab ends it.
    if (draw_.hosts > 1) {
      const double end = now_seconds() + 5;
      for (const auto& [rank, process] : processes)  // a shell still has to write them
        while (with_codes() && job.code(rank) < 0 && now_seconds() < end) test::sleep_seconds(0.02);
      job.launcher().signal(SIGTERM);
    }
    EXPECT_TRUE(job.ends_within(15)) << "the launcher stays";
    EXPECT_TRUE(job.find().empty()) << "processes are left";
    check(job);
  }

  /// One line for the record of the runs.
  std::string line() const {
    return what() + ": after " + std::to_string(seconds_).substr(0, 4) + " s all name " +
           text_of(told_);
  }
  double seconds() const { return seconds_; }
  bool named() const { return told_.rank >= 0; }

 private:
  /// Seconds from the strike to the end of the survivors.
  double allowed() const { return 3.5 * deadline_; }
  /// Seconds in which the other ranks come to a rest.
  double hold() const { return 0.075 * deadline_; }
  /// Without one between the launcher and the ranks, half of the runs.
  bool with_codes() const { return draw_.number % 2 == 0; }
  std::string log() const { return read_file(folder_ + "/log"); }

  std::string what() const {
    std::string text =
        "run " + std::to_string(draw_.number) + ": " + draw_.placement + ", " +
        std::to_string(draw_.ranks) + " ranks" +
        (draw_.stages > 1 ? " in " + std::to_string(draw_.stages) + " stages, " + draw_.order
                          : "") +
        (draw_.hosts > 1 ? " on " + std::to_string(draw_.hosts) + " hosts" : "") + ", rank " +
        std::to_string(draw_.lost) + (draw_.stops ? " stopped" : " killed");
    if (draw_.kind == "moment") return text + " at a moment";
    return text + (draw_.held ? " and missed in " : " in ") + text_of(expected());
  }

  std::vector<std::string> settings(const std::string& run_dir, int64_t steps) const {
    std::vector<std::string> sets = {
        "output.run_dir=" + run_dir,
        "placement.preset=" + draw_.placement,
        "train.steps=" + std::to_string(steps),
        "evaluation.every_steps=2",
        std::string("checkpoint.every_steps=") + (draw_.kind == "save" ? "2" : "0"),
        std::string("checkpoint.asynchronous=") + (draw_.asynchronous ? "true" : "false"),
        "runtime.deadline_seconds=" + std::to_string(deadline_)};
    const std::vector<std::string> more =
        draw_.stages > 1 ? stage_settings()
                         : std::vector<std::string>{
                               "train.global_batch_size=" + std::to_string(draw_.ranks * 2),
                               "train.micro_batch_size=" + std::to_string(1 + draw_.number % 2)};
    sets.insert(sets.end(), more.begin(), more.end());
    return sets;
  }

  /// Micro-batches that every order can use. H2 validates behind its updates and takes none back.
  std::vector<std::string> stage_settings() const {
    const bool chunks = draw_.order == "interleaved", validates = draw_.order == "zero-bubble-h2";
    return {"mesh.axes.stage=" + std::to_string(draw_.stages),
            "pipeline.order=" + draw_.order,
            std::string("pipeline.chunks_per_stage=") + (chunks ? "2" : "1"),
            std::string("pipeline.post_validation=") + (validates ? "true" : "false"),
            "train.clip_norm=1000",
            "model.shape.layers=8",
            "train.global_batch_size=12",
            "train.micro_batch_size=1"};
  }

  Strike draw_strike() {
    Strike strike;
    strike.rank = draw_.lost;
    strike.place = draw_.kind;
    strike.signal = draw_.stops ? SIGSTOP : SIGKILL;
    strike.hold_seconds = draw_.held ? hold() : 0;
    strike.truth = folder_ + "/truth.json";
    strike.found = folder_ + "/found";
    strike.step = 1 + static_cast<int64_t>(draw_.stream.below(6, kSteps));
    if (draw_.kind == "save") {  // a checkpoint in between, or the end of the run
      strike.number = static_cast<int64_t>(draw_.stream.below(7, 2));
      strike.step = strike.number == 0 ? 2 : kSteps;
    }
    if (draw_.kind == "compute" || draw_.kind == "transfer") draw_operation(strike);
    return strike;
  }

  /// An operation of the programs, as a run with threads makes them.
  void draw_operation(Strike& strike) {
    const Run run = load_run(run_file_, settings(folder_ + "/drawn", kSteps));
    const Job job = make_job(run, draw_.ranks);
    instances_ = test::instances_of(job.design.programs.program(strategy::kSteady, draw_.lost));
    const bool transfer = draw_.kind == "transfer";
    const bool evaluation = transfer && draw_.stream.below(8, 4) == 0;
    if (evaluation) strike.step = 2;
    std::vector<std::string> fitting;
    for (const test::Instance& instance : test::instances_of(job.design.programs.program(
             evaluation ? strategy::kEvaluation : strategy::kSteady, draw_.lost)))
      if (instance.transfer == transfer && !instance.alone) fitting.push_back(instance.text);
    strike.number = static_cast<int64_t>(draw_.stream.below(9, fitting.size()));
    strike.operation = fitting[strike.number];
  }

  Place expected() const {
    const bool save = strike_.place == "save";
    const std::string phase = strike_.number == 0 ? "save a checkpoint" : "finish the run";
    return {strike_.rank, strike_.step, save ? phase : strike_.operation};
  }

  void wait_for_strike(MpiJob& job) {
    while (job.launcher().running() && !std::filesystem::exists(strike_.truth))
      test::sleep_seconds(0.005);
    if (!std::filesystem::exists(strike_.truth)) return;
    truth_ = trace::parse_flight(Json::parse(read_file(strike_.truth), strike_.truth), "truth");
    at_ = truth_->monotonic_seconds;
  }

  void strike_from_outside(MpiJob& job, pid_t lost) {
    test::wait_for_step(job.launcher(), run_dir_);
    test::sleep_seconds(draw_.stream.uniform(10));
    if (!job.launcher().running()) return;
    ::kill(lost, strike_.signal);
    at_ = now_seconds();
  }

  void check(const MpiJob& job) {
    const auto files = trace::read_flight(run_dir_);
    ASSERT_EQ(files.size(), static_cast<size_t>(draw_.ranks)) << log();
    for (int64_t rank = 0; rank < draw_.ranks; ++rank) {
      if (rank == draw_.lost) continue;
      ASSERT_TRUE(files[rank]) << "rank " << rank << " left no record\n" << log();
      const Place place = place_of(*files[rank]);
      if (told_.rank < 0) told_ = place;
      EXPECT_TRUE(place == told_) << text_of(place) << " is not " << text_of(told_);
      EXPECT_EQ(place.rank, draw_.lost) << files[rank]->reason.message;
      const std::string errors = job.errors(rank);
      EXPECT_THAT(errors, HasSubstr("strait train: error")) << log();
      EXPECT_THAT(errors, HasSubstr("(rank " + std::to_string(draw_.lost) + ", " + told_.operation +
                                    ", step " + std::to_string(told_.step)));
      EXPECT_THAT(errors, HasSubstr(draw_.position()));
      if (with_codes()) {
        EXPECT_EQ(job.code(rank), 4) << log();
      }
    }
    if (draw_.lost != 0) check_report();
    check_verdict();
    check_place(files);
  }

  void check_report() const {
    const std::string path = folder_ + "/report.json";
    ASSERT_TRUE(std::filesystem::exists(path)) << log();
    const Json report = Json::parse(read_file(path), path);
    EXPECT_EQ(report.at("exit_code").as_integer(), 4);
    const Json& error = report.at("error");
    const Place place{error.at("rank").as_integer(), error.at("step").as_integer(),
                      error.at("operation").as_string()};
    EXPECT_TRUE(place == told_) << text_of(place) << " is not " << text_of(told_);
  }

  /// strait report says the same from the records.
  void check_verdict() const {
    const test::Ran report = test::run({"report", run_dir_}, folder_ + "/verdict.json");
    EXPECT_EQ(report.exit_code, 0) << report.err;
    const Json verdict = report.report.at("verdict");
    ASSERT_FALSE(verdict.is_null());
    EXPECT_EQ(verdict.at("rank").as_integer(), told_.rank) << verdict.dump();
    EXPECT_EQ(verdict.at("step").as_integer(), told_.step) << verdict.dump();
    EXPECT_TRUE(names(told_.operation, verdict.at("operation").as_string()) ||
                names(verdict.at("operation").as_string(), told_.operation))
        << verdict.dump();
  }

  void check_place(const std::vector<std::optional<FlightFile>>& files) const {
    if (draw_.kind == "moment") return check_unfinished(files);
    const Place want = expected();
    if (strike_.place == "save") {
      // Ranks that meet in a folder call it so; among them a save has no other operation.
      EXPECT_TRUE(told_.operation == want.operation || told_.operation == "save") << text_of(told_);
      EXPECT_EQ(told_.step, want.step);
      return;
    }
    const bool there = told_.step == want.step && names(told_.operation, want.operation);
    if (draw_.held || there) {
      EXPECT_TRUE(there) << text_of(told_) << " is not " << text_of(want);
      return;
    }
    EXPECT_TRUE(began_before_the_strike() || owed_at_the_strike(files) || began_beside_the_strike())
        << text_of(told_);
  }

  /// What it was in beside the place where it was struck.
  bool began_before_the_strike() const {
    return std::any_of(truth_->entries.begin(), truth_->entries.end(), [&](const auto& entry) {
      return entry.state != trace::FlightState::kDone && entry.step == told_.step &&
             names(told_.operation, entry.operation);
    });
  }
  /// While a thread of transfers wrote down the truth, the rank's own went on, until it needed that
  /// transfer: at most to the end of what a stage does next with two micro-batches.
  bool began_beside_the_strike() const {
    constexpr int64_t kMost = 40;
    if (strike_.place != "transfer" || told_.step != truth_->entries.back().step) return false;
    const auto place = [&](const std::string& name) {
      return std::find_if(instances_.begin(), instances_.end(),
                          [&](const test::Instance& one) { return names(name, one.text); }) -
             instances_.begin();
    };
    const int64_t ahead = place(told_.operation) - place(truth_->entries.back().operation);
    return ahead >= 0 && ahead <= kMost;
  }
  /// Others had begun it, and it had not.
  bool owed_at_the_strike(const std::vector<std::optional<FlightFile>>& files) const {
    const auto of_place = [&](const trace::FlightEntry& entry) {
      return entry.step == told_.step && names(told_.operation, entry.operation);
    };
    int64_t most = 0;
    for (const auto& file : files)
      if (file)
        most = std::max<int64_t>(
            most, std::count_if(file->entries.begin(), file->entries.end(), of_place));
    return std::count_if(truth_->entries.begin(), truth_->entries.end(), of_place) < most;
  }

  /// A stopped rank that goes on tells itself what it had finished; of a killed one the others know
  /// at least that it took part in what they finished. What it had finished just before may still
  /// be what it shows: it had no core since.
  void check_unfinished(const std::vector<std::optional<FlightFile>>& files) const {
    constexpr double kJustBefore = 0.05;
    EXPECT_GE(told_.step, 0) << text_of(told_);
    int64_t most = 0, finished = 0;  // a step may have several operations of one name
    for (const auto& file : files) {
      int64_t all = 0;
      for (size_t i = 0; file && i < file->entries.size(); ++i) {
        const trace::FlightEntry& entry = file->entries[i];
        const bool done = entry.state == trace::FlightState::kDone && entry.ended < at_;
        const bool shares =
            std::find(entry.group.begin(), entry.group.end(), draw_.lost) != entry.group.end();
        if (done && shares) {
          EXPECT_LE(entry.step, told_.step) << entry.operation;
        }
        if (entry.step != told_.step || !names(told_.operation, entry.operation)) continue;
        ++all;
        if (done && file->rank == draw_.lost && entry.ended < at_ - kJustBefore) ++finished;
      }
      most = std::max(most, all);
    }
    EXPECT_TRUE(most == 0 || most > finished) << text_of(told_);
    if (draw_.stops && draw_.continues) {
      EXPECT_TRUE(files[draw_.lost]) << "it did not hear of the end";
    }
  }

  const Draw draw_;
  const double deadline_ = test::deadline_here(kDeadline);
  const std::string folder_, run_dir_, run_file_;
  Strike strike_;
  std::vector<test::Instance> instances_;  // of a step of training, where it strikes in one
  std::optional<FlightFile> truth_;
  Place told_;
  double at_ = 0, seconds_ = 0;
};

int environment_number(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

/// Numbers 0 to `runs` - 1, or the one that the environment asks for; `at_once` of them at a time.
void expect_names(const Runs& which, int runs, int at_once) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const int only = environment_number("STRAIT_MPI_FAULT_RUN", -1);
  if (only >= 0) runs = only + 1;
  std::atomic<int> next{std::max(only, 0)}, named{0};
  std::mutex mutex;
  double slowest = 0;
  std::vector<std::thread> threads;
  for (int worker = 0; worker < at_once; ++worker)
    threads.emplace_back([&] {
      for (int number = next++; number < runs; number = next++) {
        FaultRun run(number, which, folder.path(), run_file);
        run.run();
        const std::lock_guard<std::mutex> lock(mutex);
        if (run.named()) ++named;
        slowest = std::max(slowest, run.seconds());
        std::printf("%s\n", run.line().c_str());
        std::fflush(stdout);
      }
    });
  for (std::thread& thread : threads) thread.join();
  std::printf("%d runs with a verdict, slowest end of the survivors %.2f s\n", named.load(),
              slowest);
  EXPECT_EQ(named.load(), only >= 0 ? 1 : runs);
}

TEST(MpiFault, EverySurvivorNamesTheRankTheOperationAndTheStep) {
  expect_names({}, environment_number("STRAIT_MPI_FAULT_RUNS", 9), 3);
}

/// And where it stands in the pipeline; of a message with direction and micro-batch, which are
/// part of its name.
TEST(MpiFault, OfAPipelineTheStageToo) {
  expect_names({.name = "mpi faults of stages", .stages = true},
               environment_number("STRAIT_MPI_FAULT_RUNS", 9), 3);
}

TEST(MpiFault, OnSeveralHostsToo) {
  if (::geteuid() != 0) GTEST_SKIP() << "emulated hosts need root";
  expect_names({.name = "mpi faults on hosts", .hosts = 2},
               std::max(3, environment_number("STRAIT_MPI_FAULT_RUNS", 0) / 8), 2);
  expect_names({.name = "mpi faults of stages on hosts", .hosts = 2, .stages = true},
               std::max(2, environment_number("STRAIT_MPI_FAULT_RUNS", 0) / 8), 2);
}

}  // namespace
}  // namespace strait
