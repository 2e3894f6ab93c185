// A step in the steady state allocates nothing: its buffers come from the pool, the pool takes
// nothing from the system, and no container grows. The seconds that a run reports for its steps add
// up to the time that it took; and what overlap hides, measured behind the end of a run, which it
// leaves as it is.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/train/solo_step.h"
#include "tests/counted_allocations.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

/// What an observer saw of a run: rank 0's steps, and its own clock at the end of each.
struct Seen {
  train::Outcome outcome;
  std::vector<double> reported, at;
};

Seen watch(const std::vector<std::string>& sets, int64_t ranks, double pause_seconds = 0) {
  const test::TemporaryFolder folder;
  Seen seen;
  train::Observer observer;
  observer.step = [&](const report::StepMetrics& metrics) {
    seen.at.push_back(now_seconds());
    seen.reported.push_back(metrics.seconds);
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_seconds));
  };
  seen.outcome = test::train_small(test::small_run(folder.path(), sets), ranks,
                                   folder.path() + "/run", observer);
  return seen;
}

/// Of step 2 to the last but one, which no evaluation follows: what was reported, over what the
/// observer's clock says.
double told_share(const Seen& seen) {
  return std::accumulate(seen.reported.begin() + 1, seen.reported.end() - 1, 0.0) /
         (seen.at.end()[-2] - seen.at.front());
}

/// The share nearest to 1 of a few runs. The two clocks are read one after the other: a run whose
/// thread loses its core in between is off by that pause, and one that tells something else is off
/// every time.
double nearest_share(const std::vector<std::string>& sets, int64_t ranks, double pause = 0) {
  double nearest = 0;
  for (int run = 0; run < 20 && std::abs(nearest - 1) > 0.01; ++run) {
    const double share = told_share(watch(sets, ranks, pause));
    if (std::abs(share - 1) < std::abs(nearest - 1)) nearest = share;
  }
  return nearest;
}

TEST(StepClock, StepsAddUpToTheWallTime) {
  for (const int64_t ranks : {1, 2, 4})
    EXPECT_NEAR(nearest_share({"train.steps=60"}, ranks), 1, 0.01) << ranks;
}

TEST(StepClock, WhatIsDoneBetweenStepsIsNotLost) {
  // An observer that dawdles stands for metrics, pictures, anything that a trainer does besides.
  EXPECT_NEAR(nearest_share({"train.steps=20"}, 2, 0.02), 1, 0.01);
}

TEST(StepClock, EvaluationsAndSavesAreTimedApart) {
  train::WallTime wall;
  // A pause between two of its clocks spoils a run of a machine that is busy, not all of them.
  for (int run = 0; run < 20 && wall.steps + wall.evaluation + wall.saving <= 0.99 * wall.training;
       ++run) {
    const Seen seen = watch({"train.steps=30", "evaluation.every_steps=2",
                             "checkpoint.every_steps=3", "checkpoint.asynchronous=false"},
                            2);
    wall = seen.outcome.wall;
    EXPECT_GT(wall.evaluation, 0);
    EXPECT_GT(wall.saving, 0);
    EXPECT_LT(told_share(seen), 0.99);
  }
  // The last save comes behind the last step.
  EXPECT_GE(wall.steps + wall.evaluation + wall.saving, 0.99 * wall.training);
  EXPECT_LE(wall.steps + wall.evaluation, 1.01 * wall.training);
}

TEST(StepClock, TokensPerSecondAreTokensOverTime) {
  const test::TemporaryFolder folder;
  auto run = test::small_run(folder.path(), {"train.steps=30"});
  run.output.run_dir = folder.path() + "/run";
  const std::atomic<int> no_signal{0};
  train::Outcome outcome;
  const Job job = make_job(run, 2);
  train::Observer observer;
  observer.step = [](const report::StepMetrics& metrics) {  // one slow step, far from the median
    if (metrics.step == 20) std::this_thread::sleep_for(std::chrono::milliseconds(500));
  };
  train::train(job, observer, no_signal, outcome);
  const Json report = train::outcome_json(job, outcome);
  const double seconds =
      std::accumulate(outcome.step_seconds.begin(), outcome.step_seconds.end(), 0.0);
  EXPECT_GT(seconds, 0.5);
  EXPECT_DOUBLE_EQ(report.at("tokens_per_second").as_number(), 25 * 24 * 13 / seconds);
}

using test::small_run;
using test::TemporaryFolder;
using test::train_small;

Run run_of(const TemporaryFolder& folder, const std::string& placement, int64_t overlap_steps) {
  return small_run(folder.path(), {"placement.preset=" + placement, "train.steps=3",
                                   "output.overlap_steps=" + std::to_string(overlap_steps),
                                   "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = "
                                   "10.0 }, { name = \"world\", size = 0, gb_per_second = 1.0 }]"});
}

TEST(Overlap, IsMeasuredBehindARunThatStaysAsItIs) {
  for (const std::string placement : {"ddp", "zero3", "zero++", "zero-topo"}) {
    SCOPED_TRACE(placement);
    const TemporaryFolder folder;
    const train::Outcome plain =
        train_small(run_of(folder, placement, 0), 4, folder.path() + "/plain");
    const train::Outcome measured =
        train_small(run_of(folder, placement, 2), 4, folder.path() + "/measured");
    EXPECT_FALSE(plain.overlap);
    ASSERT_TRUE(measured.overlap);
    EXPECT_EQ(measured.overlap->steps, 2);
    EXPECT_GT(measured.overlap->seconds, 0);
    EXPECT_GT(measured.overlap->floor_seconds, 0);
    EXPECT_GT(measured.overlap->communication_seconds, 0);
    EXPECT_LT(measured.overlap->communication_seconds, measured.overlap->serial_seconds);
    EXPECT_EQ(measured.losses, plain.losses);
    EXPECT_EQ(measured.parameter_hash, plain.parameter_hash);
    EXPECT_EQ(measured.traffic.rows().size(), plain.traffic.rows().size());
    for (size_t row = 0; row < plain.traffic.rows().size(); ++row)
      EXPECT_EQ(measured.traffic.rows()[row].payload_bytes,
                plain.traffic.rows()[row].payload_bytes);
  }
}

/// The first and the last stage sum the gradient of a tied embedding, and come to it at different
/// times.
TEST(Overlap, IsMeasuredWithStagesThatShareAnEmbedding) {
  const TemporaryFolder folder;
  const train::Outcome outcome = train_small(
      small_run(folder.path(),
                {"placement.preset=ddp", "mesh.axes.stage=2", "model.shape.tied_head=true",
                 "train.steps=2", "output.overlap_steps=1", "runtime.deadline_seconds=5"}),
      2, folder.path() + "/run");
  ASSERT_TRUE(outcome.overlap);
  EXPECT_GT(outcome.overlap->serial_seconds, 0);
}

TEST(Overlap, SharesAreThoseOfTheDefinition) {
  const train::Overlap half{5, 1.5, 2.0, 1.0, 1.0};
  EXPECT_DOUBLE_EQ(half.hidden_share(), 0.5);
  EXPECT_DOUBLE_EQ(half.hidden_share_without_floor(), 0.5);
  const train::Overlap dear{5, 1.2, 2.0, 1.1, 1.0};  // moving bytes takes a tenth of computing
  EXPECT_DOUBLE_EQ(dear.hidden_share(), 0.8 / 0.9);
  EXPECT_DOUBLE_EQ(dear.hidden_share_without_floor(), 0.8);
  const train::Overlap nothing{5, 1.0, 1.0, 1.0, 0.0};
  EXPECT_TRUE(std::isnan(nothing.hidden_share()));
  EXPECT_TRUE(std::isnan(nothing.hidden_share_without_floor()));
}

/// The steps were timed one after another, on a machine that others use.
TEST(Overlap, AStepBelowTheFloorTellsNoShare) {
  const train::Overlap noisy{3, 0.8, 1.2, 1.0, 1.0};
  EXPECT_TRUE(std::isnan(noisy.hidden_share()));
}

TEST(Overlap, OneRankHasNothingToHide) {
  const TemporaryFolder folder;
  strait::Run run = run_of(folder, "ddp", 2);
  run.cluster.levels.clear();
  EXPECT_THROW(make_job(run, 1), UserError);
}

Run small_step(const std::string& precision, const std::string& recompute) {
  Run run;
  run.model = model_preset("nano-char");
  run.model.shape.context = 16;
  run.train.global_batch_size = 2;
  run.train.precision = precision;
  run.train.recompute = recompute;
  run.runtime.threads_per_rank = 2;
  return run;
}

TEST(SteadyState, AllocatesNothing) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* recompute : {"none", "block"}) {
      SCOPED_TRACE(std::string(precision) + " " + recompute);
      train::SoloStep solo(small_step(precision, recompute), 65);
      for (int step = 0; step < 2; ++step) solo.step();
      const int64_t first = solo.pool().system_allocations(), peak = solo.pool().peak_bytes();
      EXPECT_GT(first, 0);
      const int64_t before = test::allocations.load();
      EXPECT_GT(before, 0);
      for (int step = 0; step < 3; ++step) solo.step();
      EXPECT_EQ(test::allocations.load(), before);
      EXPECT_EQ(solo.pool().system_allocations(), first);
      EXPECT_EQ(solo.pool().peak_bytes(), peak);
    }
  }
}

}  // namespace
}  // namespace strait
