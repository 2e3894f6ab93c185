// fp16 on a device: trains alongside fp32, and its loss scale backs off where a gradient overflows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "strait/base/file.h"
#include "tests/tensor/devices.h"
#include "tests/train/instances.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::TemporaryFolder;

struct Trained {
  train::Outcome outcome;
  std::vector<double> scales;    // of each step, from metrics.jsonl
  std::string bytes, predicted;  // per step
};

/// Has the gradient of one rank overflow in these steps.
struct Overflow {
  int64_t rank = 0;
  std::vector<int64_t> steps = {};
};

Trained train_fp16(Run run, int64_t ranks, const std::string& run_dir,
                   const Overflow& overflow = {}, const std::string& kind = "shadow") {
  run.output.run_dir = run_dir;
  run.train.precision = "fp16";
  run.runtime.device = "cuda";
  Surroundings surroundings;
  surroundings.device = tensor::make_test_device(kind);
  const auto alone = [](const auto& action) { return action(); };
  const Job job = make_job(run, ranks, alone, surroundings);
  train::Hooks hooks;
  hooks.before_op = [&](int64_t rank, const runtime::Instance& instance) {
    const bool now = std::ranges::find(overflow.steps, instance.step) != overflow.steps.end();
    const bool sees = test::looks_at_a_gradient(instance);
    if (!now || rank != overflow.rank || !sees || instance.reads[0].bytes == 0) return;
    const float infinite = std::numeric_limits<float>::infinity();
    job.device->copy(&infinite, instance.reads[0].data, sizeof(infinite));
  };
  const std::atomic<int> no_signal{0};
  Trained result;
  train::train(job, {}, no_signal, result.outcome, hooks);
  const Json report = train::outcome_json(job, result.outcome);
  result.bytes = report.at("bytes_per_step").at("runtime").dump();
  result.predicted = report.at("bytes_per_step").at("simulated").dump();
  for (const report::StepMetrics& metrics : report::read_metrics(run_dir + "/metrics.jsonl"))
    result.scales.push_back(metrics.loss_scale);
  return result;
}

class Fp16 : public ::testing::TestWithParam<std::string> {
 protected:
  strait::Run run_of(std::vector<std::string> sets = {}) const {
    sets.push_back("train.precision=fp32");
    return small_run(folder_.path(), sets);
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }

 private:
  TemporaryFolder folder_;
};

// fp32 state, fp16 compute and wire: numbers are rounded to 2^-11 where bf16 rounds to 2^-8, so the
// losses keep to those of fp32 eight times as well (2^-8 in device_test.cpp).
TEST_P(Fp16, TrainsAlongsideFp32InEveryPlacement) {
  // With sgd the size of an update is that of the gradient, which a scale left in would change.
  const std::pair<const char*, const char*> variants[] = {{"gpt2", "model.family=gpt2"},
                                                          {"llama", "model.family=llama"},
                                                          {"sgd", "optimizer.kind=sgd"}};
  for (const auto& [family, with] : variants) {
    const train::Outcome plain = test::train_small(run_of({with}), 1, path(family));
    EXPECT_LT(plain.losses.back(), plain.losses.front());
    for (const char* placement : {"ddp", "zero1", "zero3"}) {
      const std::string name = std::string(family) + placement;
      const strait::Run run = run_of({with, std::string("placement.preset=") + placement});
      const Trained got = train_fp16(run, 2, path(name), {}, GetParam());
      ASSERT_EQ(got.outcome.losses.size(), plain.losses.size());
      for (size_t step = 0; step < plain.losses.size(); ++step)
        EXPECT_NEAR(got.outcome.losses[step], plain.losses[step], 0x1p-11 * plain.losses[step])
            << name << " step " << step;
      EXPECT_THAT(got.scales, testing::Each(65536.0)) << name;
      EXPECT_EQ(got.bytes, got.predicted) << name;
    }
  }
}

// All ranks skip the step of one rank's overflow and go on with half the scale, without
// train.non_finite = skip.
TEST_P(Fp16, AnOverflowOnOneRankIsSkippedByAllAndHalvesTheScale) {
  std::vector<std::vector<double>> losses;
  for (const char* placement : {"ddp", "zero1", "zero3"}) {
    const strait::Run run = run_of({"train.steps=6", std::string("placement.preset=") + placement});
    const Trained got = train_fp16(run, 2, path(placement), {1, {2, 4}}, GetParam());
    EXPECT_THAT(got.scales, testing::ElementsAre(65536, 65536, 65536, 32768, 32768, 16384))
        << placement;
    losses.push_back(got.outcome.losses);
    for (const double loss : losses.back()) EXPECT_TRUE(std::isfinite(loss));
  }
  for (const auto& other : losses)
    for (size_t step = 0; step < other.size(); ++step)
      EXPECT_NEAR(other[step], losses[0][step], 0x1p-11 * losses[0][step]);
}

TEST_P(Fp16, AResumedRunIsTheRunThatWentOn) {
  const auto with = [&](const std::string& steps, const std::string& resume) {
    return run_of({"train.steps=" + steps, "optimizer.decay_steps=8", "placement.preset=zero3",
                   "checkpoint.resume=" + resume});
  };
  const Trained whole = train_fp16(with("8", "never"), 2, path("whole"), {0, {1}}, GetParam());
  train_fp16(with("4", "never"), 2, path("parts"), {0, {1}}, GetParam());
  const Trained resumed = train_fp16(with("8", "auto"), 2, path("parts"), {}, GetParam());
  EXPECT_EQ(resumed.scales, whole.scales);
  EXPECT_EQ(whole.scales.back(), 32768);
  EXPECT_EQ(resumed.outcome.parameter_hash, whole.outcome.parameter_hash);
}

// A scale that cannot get smaller does not hide that the run has failed.
TEST_P(Fp16, AnOverflowThatNoScaleMendsStopsTheRun) {
  Overflow always{1, {}};
  for (int64_t step = 0; step < 20; ++step) always.steps.push_back(step);
  EXPECT_THROW(train_fp16(run_of(), 2, path("always"), always, GetParam()), NonFinite);
  const auto metrics = report::read_metrics(path("always") + "/metrics.jsonl");
  ASSERT_EQ(metrics.size(), 16u);  // 65536 = 2^16
  EXPECT_EQ(metrics.back().loss_scale, 2);
}

TEST_P(Fp16, LocalStepsAreRefused) {
  const strait::Run run = run_of({"sync.policy=diloco", "sync.rounds.period_steps=3"});
  const std::string text = [&]() -> std::string {
    try {
      train_fp16(run, 2, path("local"), {}, GetParam());
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }();
  EXPECT_NE(text.find("replicas whose loss scales skip different steps"), std::string::npos)
      << text;
}

INSTANTIATE_TEST_SUITE_P(Devices, Fp16, ::testing::ValuesIn(tensor::test_devices()));

}  // namespace
}  // namespace strait
