// The honest ledger: what the runtime counted at the transport = what the simulator counted on its
// links = what the cost model sums = closed forms, per level and per operation. And memory: state =
// formula, peak = what the allocator saw. What ranks exchange outside of programs is counted apart.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "strait/cost/cost.h"
#include "strait/layout/layout.h"
#include "strait/report/metrics.h"
#include "strait/sim/simulate.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using test::add_exchange;
using test::Bytes;
using test::bytes_of;
using test::kAgreedBytes;
using test::small_run;
using test::TemporaryFolder;

struct Case {
  std::string placement;
  int64_t ranks, accumulation;
  bool tied;
  std::string family = "gpt2";
  std::string precision = "fp64";
};

/// The closed forms of one optimizer step, summed over all ranks; M = bytes of a unit.
Bytes closed_form(const Case& c, const strategy::Design& design, int64_t inner) {
  Bytes bytes;
  const int64_t n = c.ranks, a = c.accumulation, groups = n / inner;
  for (const UnitShape& unit : design.shape.units) {
    const int64_t m = unit.elements * dtype_bytes(design.dtype);
    const bool block = unit.name.starts_with("blocks.");
    // Blocks are gathered twice per micro-step. The embedding's backward needs no weights and the
    // head runs both at once: once each; tied, they are one unit, gathered twice.
    const int64_t gathers = block || c.tied ? 2 : 1;
    if (c.placement == "ddp") {
      add_exchange(bytes, "all-reduce", 2 * m, {n, 1});  // bf16 too: summed on the way
    } else if (c.placement == "zero1") {
      add_exchange(bytes, "reduce-scatter", m, {n, 1});
      add_exchange(bytes, "all-gather", m, {n, 1});
    } else if (c.placement == "zero2") {
      add_exchange(bytes, "reduce-scatter", a * m, {n, 1});
      add_exchange(bytes, "all-gather", m, {n, 1});
    } else if (c.placement == "zero3") {
      add_exchange(bytes, "all-gather", a * gathers * m, {n, 1});
      add_exchange(bytes, "reduce-scatter", a * m, {n, 1});
    } else {
      add_exchange(bytes, "all-gather", groups * a * gathers * m, {inner, 1});
      add_exchange(bytes, "reduce-scatter", groups * a * m, {inner, 1});
      const int64_t times = c.placement == "hsdp" ? a : 1;
      add_exchange(bytes, "all-reduce", 2 * times * m, {groups, inner});
    }
  }
  add_exchange(bytes, "all-reduce", 2 * kAgreedBytes, {n, 1}, true);
  std::erase_if(bytes, [](const auto& row) { return row.second == 0; });
  return bytes;
}

strait::Run run_of(const Case& c, const std::string& folder) {
  return small_run(
      folder,
      {"placement.preset=" + c.placement, "train.steps=3",
       "train.micro_batch_size=" + std::to_string(24 / c.ranks / c.accumulation),
       std::string("model.shape.tied_head=") + (c.tied ? "true" : "false"),
       "model.family=" + c.family, "train.precision=" + c.precision,
       c.family == "gpt2" ? "model.shape.kv_heads=2" : "model.shape.kv_heads=1", test::kPairs});
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const char* placement : {"ddp", "zero1", "zero2", "zero3", "hsdp", "mics"})
    for (const int64_t ranks : {2, 4, 8})
      for (const int64_t accumulation : {1, 3})
        for (const bool tied : {true, false})
          cases.push_back({placement, ranks, accumulation, tied});
  for (const char* placement : {"ddp", "zero3", "hsdp"})
    for (const bool tied : {true, false}) cases.push_back({placement, 4, 3, tied, "llama"});
  return cases;
}

TEST(Bytes, RuntimeSimulatorCostAndClosedFormAgreePerLevelAndOperation) {
  const TemporaryFolder folder;
  int number = 0;
  std::vector<Case> cases = all_cases();
  for (const int64_t ranks : {2, 4, 8}) cases.push_back({"ddp", ranks, 3, true, "gpt2", "bf16"});
  for (const Case& c : cases) {
    strait::Run run = run_of(c, folder.path());
    run.output.run_dir = folder.path() + "/" + std::to_string(number++);
    const Job job = make_job(run, c.ranks);
    const train::Outcome outcome = test::outcome_of(job);
    const std::string what = c.placement + " ranks " + std::to_string(c.ranks) + " accumulation " +
                             std::to_string(c.accumulation) + (c.tied ? " tied " : " untied ") +
                             c.precision;
    const Bytes want = closed_form(c, job.design, job.design.placement.optimizer);
    SCOPED_TRACE(what);
    test::expect_bytes(job, outcome.traffic, 3, want);
  }
}

/// By level, of every line of a run's metrics.
std::vector<std::vector<int64_t>> bytes_of_lines(const std::string& run_dir) {
  std::vector<std::vector<int64_t>> lines;
  for (const report::StepMetrics& step : report::read_metrics(run_dir + "/metrics.jsonl")) {
    lines.emplace_back();
    for (const report::LevelBytes& level : step.bytes_per_level)
      lines.back().push_back(level.bytes);
  }
  return lines;
}

// Whatever ranks wait for, and however far ahead of rank 0 they are. What a step leaves under way
// (gathers of new weights) counts for the step that ends it.
TEST(Bytes, EveryStepTellsItsOwn) {
  constexpr int64_t kSteps = 5;
  const TemporaryFolder folder;
  for (const char* placement : {"ddp", "zero1", "zero3"})
    for (const int64_t slow : {0, 3}) {
      SCOPED_TRACE(std::string(placement) + ", rank " + std::to_string(slow) + " is slow");
      const Case c{placement, 4, 1, true};
      strait::Run run = run_of(c, folder.path());
      run.train.steps = kSteps;
      run.output.run_dir = folder.path() + "/" + placement + std::to_string(slow);
      const Job job = make_job(run, c.ranks);
      train::Hooks hooks;
      hooks.faults.max_delay_seconds = 0.002;
      hooks.before_op = [slow](int64_t rank, const runtime::Instance& instance) {
        if (rank == slow && instance.op->kernel->name == std::string("begin_step"))
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
      };
      test::outcome_of(job, hooks);
      std::vector<int64_t> step(2, 0), late(2, 0);
      for (const auto& [row, bytes] : closed_form(c, job.design, job.design.placement.optimizer)) {
        step[row.second] += bytes;
        if (row.first == "all-gather" && c.placement == "zero1") late[row.second] += bytes;
      }
      const auto lines = bytes_of_lines(run.output.run_dir);
      ASSERT_EQ(lines.size(), kSteps);
      for (int64_t n = 0; n < kSteps; ++n)
        for (const size_t level : {0, 1})
          EXPECT_EQ(lines[n][level],
                    step[level] - (n == 0 ? late[level] : 0) + (n == kSteps - 1 ? late[level] : 0))
              << "step " << n + 1 << ", level " << level;
    }
}

TEST(Bytes, AProgramThatMovesAUnitTwiceIsNoticed) {
  const TemporaryFolder folder;
  const Case c{"zero3", 2, 1, true};
  const strategy::Design design = strategy::make_design(run_of(c, folder.path()), c.ranks, 40);
  const Bytes want = closed_form(c, design, 2);
  const program::Program& step = design.steady().front();
  EXPECT_EQ(bytes_of(sim::simulate(step, design.cluster).traffic, 1), want);
  for (size_t i = 0; i < step.body.size(); ++i) {
    const auto* op = std::get_if<program::Op>(&step.body[i]);
    if (op == nullptr || op->kind != program::OpKind::kReduceScatter) continue;
    program::Program twice = step;
    twice.body.insert(twice.body.begin() + static_cast<int64_t>(i), *op);
    EXPECT_NE(bytes_of(sim::simulate(twice, design.cluster).traffic, 1), want);
    EXPECT_NE(bytes_of(cost::price(twice, design.cluster).traffic, 1), want);
    program::Program dropped = step;
    dropped.body.erase(dropped.body.begin() + static_cast<int64_t>(i));
    EXPECT_NE(bytes_of(cost::price(dropped, design.cluster).traffic, 1), want);
    return;
  }
  FAIL() << "the program has no reduce-scatter";
}

TEST(Memory, StateIsTheFormulaAndThePeakIsWhatTheAllocatorSaw) {
  const TemporaryFolder folder;
  int number = 0;
  for (const Case& c : all_cases()) {
    if (!c.tied) continue;
    strait::Run run = run_of(c, folder.path());
    run.output.run_dir = folder.path() + "/" + std::to_string(number++);
    const Job job = make_job(run, c.ranks);
    const train::Outcome outcome = test::outcome_of(job);
    const strategy::Placement& p = job.design.placement;
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      int64_t weights = 0, gradients = 0, moments = 0;
      for (const UnitShape& unit : job.design.shape.units) {
        // A span of s of N ranks holds ceil(n / N) rounded up to 16, times N / s, elements, cut at
        // the end.
        const auto held = [&](int64_t span) {
          if (span == 1) return unit.elements;
          const int64_t grain =
              ((unit.elements + c.ranks - 1) / c.ranks + 15) / 16 * 16 * (c.ranks / span);
          return std::clamp<int64_t>(unit.elements - grain * (rank % span), 0, grain);
        };
        weights += 8 * held(p.weights);
        gradients += 8 * held(p.gradients);
        moments += 16 * held(p.optimizer);
      }
      const program::MemoryUse& state = outcome.state_bytes[rank];
      EXPECT_EQ(state.weights, weights) << c.placement << " rank " << rank;
      EXPECT_EQ(state.gradients, gradients) << c.placement << " rank " << rank;
      EXPECT_EQ(state.optimizer, moments) << c.placement << " rank " << rank;
      const double predicted = static_cast<double>(outcome.predicted_peak_bytes[rank]);
      EXPECT_NEAR(static_cast<double>(outcome.pool_peak_bytes[rank]), predicted, 0.05 * predicted)
          << c.placement << " ranks " << c.ranks << " accumulation " << c.accumulation << " rank "
          << rank;
    }
  }
}

TEST(Bookkeeping, IsCountedApartFromTraining) {
  constexpr int64_t kRanks = 4;
  const test::TemporaryFolder folder;
  strait::Run run = test::small_run(folder.path(), {"train.steps=3", "placement.preset=zero3"});
  run.output.run_dir = folder.path() + "/run";
  const Job job = make_job(run, kRanks);
  train::Outcome outcome;
  train::train(job, {}, std::atomic<int>{0}, outcome);
  std::map<std::string, int64_t> bytes;
  for (const Traffic& row : outcome.bookkeeping.rows())
    bytes[row.operation] += row.payload_bytes + row.metadata_bytes;
  EXPECT_EQ(bytes.size(), 2u);
  // Before the first step, whether anybody was asked to stop: one integer.
  EXPECT_EQ(bytes["all-reduce"], 8 * 2 * (kRanks - 1));
  // For the hash, the weights that rank 0 does not hold itself.
  int64_t collected = 0;
  for (const UnitShape& unit : job.design.shape.units)
    for (int64_t rank = 1; rank < kRanks; ++rank)
      collected += 8 * shard_of(unit.elements, kRanks, kRanks, rank).size();
  EXPECT_EQ(bytes["all-to-all"], collected);
}

// An evaluation gathers every unit once per batch, and nothing of it counts as a step's.
TEST(BetweenSteps, EvaluationsAreCountedApartFromTraining) {
  constexpr int64_t kRanks = 4, kBatches = 2;
  const TemporaryFolder folder;
  const auto train = [&](const std::string& every, int64_t& elements) {
    strait::Run run = small_run(
        folder.path(), {"train.steps=6", "placement.preset=zero3", "train.micro_batch_size=6",
                        "model.shape.tied_head=false", "evaluation.every_steps=" + every,
                        "evaluation.batches=" + std::to_string(kBatches)});
    run.output.run_dir = folder.path() + "/run-" + every;
    const Job job = make_job(run, kRanks);
    elements = job.design.shape.parameters();
    train::Outcome outcome;
    train::train(job, {}, std::atomic<int>{0}, outcome);
    return outcome;
  };
  const auto gathered = [](const train::Outcome& outcome) {
    int64_t bytes = 0;
    for (const Traffic& row : outcome.between_steps.rows())
      if (row.operation == "all-gather") bytes += row.payload_bytes;
    return bytes;
  };
  int64_t elements = 0;
  const train::Outcome once = train("0", elements), often = train("2", elements);
  const int64_t evaluation = kBatches * (kRanks - 1) * 8 * elements;
  EXPECT_EQ(gathered(once), evaluation);  // behind the last step
  EXPECT_EQ(gathered(often), 3 * evaluation);
  EXPECT_EQ(often.traffic.bytes(), once.traffic.bytes());
}

}  // namespace
}  // namespace strait
