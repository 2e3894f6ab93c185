// A run that keeps the checkpoint of its least validation loss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <utility>

#include "strait/base/errors.h"
#include "strait/checkpoint/reader.h"
#include "strait/checkpoint/retention.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The rate grows until the loss does too, so that the best step is neither the first nor the last.
const std::vector<std::string> kSets = {"train.steps=24",
                                        "evaluation.every_steps=2",
                                        "optimizer.learning_rate=0.4",
                                        "optimizer.warmup_steps=24",
                                        "checkpoint.keep_best=true",
                                        "checkpoint.keep=1"};

class KeepBestRun : public ::testing::Test {
 protected:
  train::Outcome train(int64_t ranks, std::vector<std::string> more = {}) const {
    std::vector<std::string> sets = kSets;
    sets.insert(sets.end(), more.begin(), more.end());
    return test::train_small(test::small_run(folder_.path(), sets), ranks, run_dir_);
  }
  std::vector<int64_t> steps_left() const {
    std::vector<int64_t> steps;
    for (const std::string& path : checkpoint::complete_checkpoints(run_dir_))
      steps.push_back(checkpoint::read_manifest(path).step);
    return steps;
  }
  static train::ValidationPoint best_of(const train::Outcome& outcome) {
    return *std::min_element(outcome.validation.begin(), outcome.validation.end(),
                             [](const auto& a, const auto& b) { return a.loss < b.loss; });
  }

  test::TemporaryFolder folder_;
  std::string run_dir_ = folder_.path() + "/run";
};

TEST_F(KeepBestRun, TheCheckpointOfTheLeastLossIsThereInTheEnd) {
  const train::Outcome outcome = train(2);
  const train::ValidationPoint best = best_of(outcome);
  ASSERT_GT(best.step, 2);
  ASSERT_LT(best.step, 24);
  EXPECT_THAT(steps_left(), ElementsAre(best.step, 24));
  const checkpoint::CheckpointReader reader(run_dir_ + "/best");
  EXPECT_EQ(reader.path(), outcome.best_checkpoint);
  EXPECT_EQ(reader.manifest().step, best.step);
  EXPECT_EQ(checkpoint::validation_loss_of(reader.manifest()), best.loss);
}

TEST_F(KeepBestRun, AResumedRunGoesOnFromTheBestSoFar) {
  const std::string schedule = "optimizer.schedule=constant", rate = "optimizer.learning_rate=1.6";
  const train::Outcome first = train(1, {"train.steps=18", schedule, rate});
  const int64_t best = best_of(first).step;
  ASSERT_LT(best, 18);
  const train::Outcome second = train(2, {schedule, rate, "checkpoint.resume=auto"});
  ASSERT_EQ(best_of(second).step, best);
  EXPECT_THAT(steps_left(), ElementsAre(best, 24));
}

/// Stopped in the step of an evaluation, in the middle of one, and in one that is made up.
TEST_F(KeepBestRun, EvaluationsThatASignalPreventsAreMadeUp) {
  const std::vector<std::string> more = {"evaluation.batches=2", "checkpoint.resume=auto"};
  const train::Outcome whole = train(2, more);
  const std::string whole_dir = std::exchange(run_dir_, folder_.path() + "/parts");
  std::vector<std::string> sets = kSets;
  sets.insert(sets.end(), more.begin(), more.end());
  sets.push_back("output.run_dir=" + run_dir_);
  train::Outcome outcome;
  int launches = 0;
  bool stopped = false;
  do {
    std::atomic<int> signal{0};
    const int64_t begun = outcome.steps;
    train::Observer observer;
    train::Hooks hooks;
    if (launches % 2 == 0)
      observer.step = [&](const report::StepMetrics& metrics) {
        if (metrics.step % 2 == 1 && metrics.step > begun + 2) signal = SIGTERM;
      };
    else
      hooks.before_op = [&, first = begun + (launches % 4 == 1 ? 1 : 0)](
                            int64_t, const runtime::Instance& instance) {
        if (instance.program->step_kind == strategy::kEvaluation && instance.step >= first)
          signal = SIGTERM;
      };
    const Job job = make_job(test::small_run(folder_.path(), sets), 2);
    outcome = {};
    train::train(job, observer, signal, outcome, hooks);
    stopped = signal != 0;
    ASSERT_LT(++launches, 20);
  } while (stopped || outcome.steps < 24);
  EXPECT_GT(launches, 4);
  EXPECT_EQ(outcome.parameter_hash, whole.parameter_hash);
  ASSERT_EQ(outcome.validation.size(), whole.validation.size());
  for (size_t at = 0; at < whole.validation.size(); ++at) {
    EXPECT_EQ(outcome.validation[at].step, whole.validation[at].step);
    EXPECT_EQ(outcome.validation[at].loss, whole.validation[at].loss);
  }
  EXPECT_EQ(checkpoint::CheckpointReader(run_dir_ + "/best").manifest().step,
            checkpoint::CheckpointReader(whole_dir + "/best").manifest().step);
}

TEST_F(KeepBestRun, WhatCannotTakeEffectIsRefusedByName) {
  const auto message = [&](const std::vector<std::string>& sets) -> std::string {
    try {
      train(1, sets);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message({"evaluation.every_steps=0"}),
              HasSubstr("checkpoint.keep_best = true cannot take effect"));
  EXPECT_THAT(
      message({"data.validation_share=0", "evaluation.every_steps=250", "evaluation.batches=0"}),
      HasSubstr("checkpoint.keep_best = true cannot take effect"));
  EXPECT_THAT(message({"data.validation_share=0.000001"}), HasSubstr("fewer than two tokens"));
}

}  // namespace
}  // namespace strait
