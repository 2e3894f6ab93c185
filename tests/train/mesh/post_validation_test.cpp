// Pipelines whose updates are validated by the next step train bit for bit as those that wait for
// all ranks, whether gradients are clipped, skipped or taken as they are.
#include <gtest/gtest.h>

#include <limits>

#include "strait/base/errors.h"
#include "strait/strategy/finish/kernels.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

constexpr int64_t kSteps = 12;
const Sets kWaits = {"pipeline.order=zero-bubble-h1"};
const Sets kPostValidates = {"pipeline.order=zero-bubble-h2", "pipeline.post_validation=true"};

Sets operator+(Sets a, const Sets& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// A run with what was seen of it.
struct Seen {
  train::Outcome outcome;
  std::vector<double> norms;  // of the gradient, by step
};

class PostValidation : public test::MeshRuns {
 protected:
  strait::Run run_of(const Sets& sets) {
    const Sets common = {"train.steps=" + std::to_string(kSteps),
                         "train.global_batch_size=8",
                         "train.micro_batch_size=1",
                         "model.shape.layers=4",
                         "model.shape.dropout=0.1",
                         "optimizer.learning_rate=1e-2"};
    return small_run(folder_.path(), common + sets);
  }
  static train::Observer observer_of(Seen& seen) {
    train::Observer observer;
    observer.step = [&seen](const report::StepMetrics& step) {
      seen.norms.push_back(step.gradient_norm);
    };
    return observer;
  }
  Seen train(const Sets& sets, int64_t ranks, const train::Hooks& hooks = {},
             std::string run_dir = "") {
    strait::Run run = run_of(sets);
    run.output.run_dir = run_dir.empty() ? next_folder() : run_dir;
    Seen seen;
    train::train(make_job(run, ranks), observer_of(seen), signal_, seen.outcome, hooks);
    return seen;
  }
  /// H2 whose ranks all wait for each other before they clip or skip, which run files are refused.
  Seen waiting(const Sets& sets, int64_t ranks, const train::Hooks& hooks) {
    const strait::Run rules = run_of(kPostValidates + sets);
    strait::Run run = run_of(kPostValidates + sets);
    run.pipeline.post_validation = false;
    run.train.clip_norm = 0;
    run.train.non_finite = "stop";
    run.output.run_dir = next_folder();
    Job job = make_job(run, ranks);
    job.design.run.train = rules.train;
    Seen seen;
    train::train(job, observer_of(seen), signal_, seen.outcome, hooks);
    return seen;
  }
  /// Both ways; returns how many updates were taken back.
  int64_t expect_same(const Sets& sets, int64_t ranks, const train::Hooks& hooks = {}) {
    const Seen want = waiting(sets, ranks, hooks);
    const Seen got = train(kPostValidates + sets, ranks, hooks);
    EXPECT_EQ(got.outcome.parameter_hash, want.outcome.parameter_hash);
    EXPECT_EQ(got.outcome.losses, want.outcome.losses);
    for (size_t step = 0; step < want.norms.size(); ++step)
      EXPECT_TRUE(got.norms.at(step) == want.norms[step] || std::isnan(want.norms[step])) << step;
    EXPECT_EQ(got.outcome.validation.back().loss, want.outcome.validation.back().loss);
    EXPECT_EQ(want.outcome.steps_taken_back, 0);
    norms_ = want.norms;
    return got.outcome.steps_taken_back;
  }
  int64_t clipped(double above) const {
    return std::ranges::count_if(norms_, [&](double norm) { return norm > above; });
  }

  std::atomic<int> signal_{0};
  std::vector<double> norms_;
};

struct Grid {
  int64_t ranks;
  Sets sets;
};

const char* const kLevels =
    "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0, latency_microseconds = 1.0 "
    "}, { name = \"world\", size = 0, gb_per_second = 1.0, latency_microseconds = 5.0 }]";

std::vector<Grid> grids() {
  const Sets untied = {"model.shape.tied_head=false"};
  const Sets shared = {"model.shape.ffn_width=40", "model.shape.vocabulary=24"};
  return {
      {2, {"mesh.axes.stage=2"}},
      {2, Sets{"mesh.axes.stage=2"} + untied},
      {4, Sets{"mesh.axes.stage=4"} + untied},
      {4, {"mesh.axes.stage=4", "pipeline.cuts=1,2,3"}},
      {4, {"mesh.axes.stage=2", "placement.preset=ddp"}},
      {4, {"mesh.axes.stage=2", "placement.preset=zero1"}},
      {4, {"mesh.axes.stage=2", "placement.preset=zero2"}},
      {4, {"mesh.axes.stage=2", "placement.preset=zero3"}},
      {8, Sets{"mesh.axes.stage=4", "placement.preset=zero1"} + untied},
      {4, Sets{"mesh.axes.stage=2", "mesh.axes.x=2", "placement.preset=ddp"} + shared},
      {8, Sets{"mesh.axes.stage=2", "mesh.axes.x=2", "placement.preset=zero1"} + shared + untied},
      {2, {"mesh.axes.stage=2", "train.recompute=block", "model.family=llama"}},
      {2, {"mesh.axes.stage=2", "optimizer.kind=sgd"}},
      {2, {"mesh.axes.stage=2", "train.precision=fp32"}},
      {4, {"mesh.axes.stage=2", "train.precision=bf16", "placement.preset=zero1"}},
      {4,
       {"mesh.axes.stage=2", "train.precision=fp32", "placement.preset=zero2",
        "placement.codecs.gradients=[\"int8/64\"]"}},
      {8, {"mesh.axes.stage=2", "train.precision=bf16", "placement.preset=zero-topo", kLevels}},
      {8, {"mesh.axes.stage=2", "train.precision=fp32", "placement.preset=hsdp", kLevels}},
      {2, {"mesh.axes.stage=2", "pipeline.activation_codec=int8/16", "train.precision=fp32"}},
  };
}

/// A threshold in the middle of the norms strikes at some steps and not at others.
TEST_F(PostValidation, ClippingThatStrikesNowAndThen) {
  for (const Grid& grid : grids()) {
    SCOPED_TRACE(::testing::PrintToString(grid.sets));
    EXPECT_EQ(expect_same(grid.sets + Sets{"train.clip_norm=1000"}, grid.ranks), 0);
    std::vector<double> norms = norms_;
    std::ranges::sort(norms);
    const double threshold = (norms[kSteps / 2 - 1] + norms[kSteps / 2]) / 2;
    const Sets clips = {"train.clip_norm=" + std::to_string(threshold)};
    const int64_t taken_back = expect_same(grid.sets + clips, grid.ranks);
    EXPECT_EQ(taken_back, clipped(threshold));
    EXPECT_GT(taken_back, 0);
    EXPECT_LT(taken_back, kSteps);
  }
}

TEST_F(PostValidation, WithoutClippingItIsH2AsItWas) {
  for (const Grid& grid : grids()) {
    SCOPED_TRACE(::testing::PrintToString(grid.sets));
    const Sets free = grid.sets + Sets{"train.clip_norm=0"};
    const Seen want = train(Sets{"pipeline.order=zero-bubble-h2"} + free, grid.ranks);
    const Seen got = train(kPostValidates + free, grid.ranks);
    EXPECT_EQ(got.outcome.parameter_hash, want.outcome.parameter_hash);
    EXPECT_EQ(got.outcome.losses, want.outcome.losses);
    EXPECT_EQ(got.outcome.steps_taken_back, 0);
  }
}

/// Spoils what a rank has reduced in some steps, before it takes its norm.
train::Hooks spoiled(int64_t rank_of, const std::vector<int64_t>& steps) {
  train::Hooks hooks;
  hooks.before_op = [rank_of, steps](int64_t rank, const runtime::Instance& instance) {
    if (rank != rank_of || instance.op->kernel != &strategy::kSquaredNormOf ||
        std::ranges::find(steps, instance.step) == steps.end())
      return;
    const runtime::Bound& gradient = *instance.find_read(strategy::kNormGradient);
    const auto count = static_cast<size_t>(gradient.bytes) / sizeof(double);
    std::fill_n(static_cast<double*>(gradient.data), count,
                std::numeric_limits<double>::quiet_NaN());
  };
  return hooks;
}

TEST_F(PostValidation, NonFiniteGradientsSkipAStepOnAllRanks) {
  const Sets skips = {"train.non_finite=skip"};
  for (const Grid& grid : grids()) {
    if (std::ranges::any_of(
            grid.sets, [](const auto& set) { return set.find("precision") != std::string::npos; }))
      continue;  // the hook spoils numbers of fp64
    SCOPED_TRACE(::testing::PrintToString(grid.sets));
    for (const int64_t rank : {int64_t{0}, grid.ranks - 1}) {
      const train::Hooks hooks = spoiled(rank, {2, 3, 7, kSteps - 1});
      EXPECT_EQ(expect_same(grid.sets + skips + Sets{"train.clip_norm=1000"}, grid.ranks, hooks),
                4);
    }
  }
  const Sets both = skips + Sets{"mesh.axes.stage=2", "train.clip_norm=1.0"};
  EXPECT_GT(expect_same(both, 2, spoiled(1, {0, 5})), 2);
}

TEST_F(PostValidation, NonFiniteGradientsStopTheRun) {
  const Sets sets = {"mesh.axes.stage=2", "train.clip_norm=0", "checkpoint.every_steps=1"};
  for (const int64_t step : {0, 4}) {
    const std::string run_dir = next_folder();
    try {
      train(kPostValidates + sets, 2, spoiled(1, {step}), run_dir);
      FAIL();
    } catch (const NonFinite& error) {
      EXPECT_EQ(error.place().step, step + 1);
      EXPECT_NE(std::string(error.what()).find("the weights were not changed"), std::string::npos);
    }
  }
}

/// Who looks at weights between steps sees valid ones.
TEST_F(PostValidation, EvaluationsAndCheckpointsSeeValidWeights) {
  const Sets sets = {"mesh.axes.stage=2",        "placement.preset=zero1",
                     "train.clip_norm=1.0",      "evaluation.every_steps=3",
                     "checkpoint.every_steps=4", "optimizer.decay_steps=12"};
  const Seen want = train(kWaits + sets, 4);
  const std::string run_dir = next_folder();
  const Seen got = train(kPostValidates + sets, 4, {}, run_dir);
  ASSERT_EQ(got.outcome.validation.size(), want.outcome.validation.size());
  for (size_t at = 0; at < want.outcome.validation.size(); ++at)
    EXPECT_EQ(got.outcome.validation[at].loss, want.outcome.validation[at].loss);
  EXPECT_GT(got.outcome.steps_taken_back, 0);
  EXPECT_EQ(got.outcome.parameter_hash, want.outcome.parameter_hash);
}

/// A checkpoint of either goes on in the other, and in another mesh, and holds the same states.
TEST_F(PostValidation, CheckpointsGoFromAnyToAny) {
  const Sets sets = {"train.clip_norm=1.0", "optimizer.decay_steps=12", "checkpoint.resume=auto",
                     "mesh.axes.stage=2", "placement.preset=zero1"};
  const auto until = [](int64_t step) { return Sets{"train.steps=" + std::to_string(step)}; };
  const auto states_of = [](const std::string& run_dir) {
    const checkpoint::CheckpointReader reader(run_dir);
    std::vector<std::string> states;
    for (const auto& unit : reader.manifest().units) states.push_back(unit.name);
    for (const auto& value : reader.manifest().values) states.push_back(value.name);
    return states;
  };
  const std::string waits = next_folder(), mixed = next_folder();
  std::string hash;
  for (const int64_t step : {4, 8, 12})
    hash = train(kWaits + sets + until(step), 4, {}, waits).outcome.parameter_hash;
  const std::string first =
      train(kPostValidates + sets + until(4), 4, {}, mixed).outcome.parameter_hash;
  EXPECT_NE(first, hash);
  EXPECT_EQ(states_of(mixed), states_of(waits));
  train(kWaits + sets + until(8), 4, {}, mixed);
  EXPECT_EQ(train(kPostValidates + sets + until(12), 4, {}, mixed).outcome.parameter_hash, hash);
}

/// A signal while a step is under way: that one is still done, saved, and gone on from.
TEST_F(PostValidation, StopsBehindAValidStep) {
  const Sets sets = {"train.clip_norm=1.0", "checkpoint.resume=auto", "mesh.axes.stage=2"};
  const std::string hash = train(kWaits + sets, 2).outcome.parameter_hash;
  const std::string run_dir = next_folder();
  train::Hooks hooks;
  hooks.before_op = [this](int64_t rank, const runtime::Instance& instance) {
    if (rank == 0 && instance.step == 5 && instance.op->kernel == &strategy::kUpdate) signal_ = 15;
  };
  const Seen stopped = train(kPostValidates + sets, 2, hooks, run_dir);
  signal_ = 0;
  EXPECT_GE(stopped.outcome.steps, 6);
  EXPECT_LE(stopped.outcome.steps, 9);
  EXPECT_EQ(train(kPostValidates + sets, 2, {}, run_dir).outcome.parameter_hash, hash);
}

/// Bytes of a step are those of the model; a void step moves them once more.
TEST_F(PostValidation, BytesAreThoseOfThePrograms) {
  for (const char* preset : {"ddp", "zero1", "zero3"})
    for (const char* clip : {"0", "1.0"}) {
      SCOPED_TRACE(std::string(preset) + ", clip " + clip);
      const Sets sets = {"mesh.axes.stage=2", std::string("placement.preset=") + preset};
      strait::Run run =
          run_of(kPostValidates + sets + Sets{std::string("train.clip_norm=") + clip});
      run.output.run_dir = next_folder();
      const Job job = make_job(run, 4);
      train::Outcome outcome;
      int64_t runs = 0;
      train::Hooks hooks;
      hooks.before_op = [&](int64_t rank, const runtime::Instance& instance) {
        const bool begins = instance.op->kernel == &strategy::kBeginStep;
        if (rank == 0 && begins && instance.program->step_kind == "steady") ++runs;
      };
      train::train(job, {}, signal_, outcome, hooks);
      EXPECT_EQ(runs > kSteps, outcome.steps_taken_back > 0);
      EXPECT_EQ(outcome.steps_taken_back > 0, std::string(clip) != "0");
      EXPECT_EQ(outcome.traffic.payload_bytes(0), runs * job.simulated.traffic.payload_bytes(0));
      EXPECT_EQ(job.cost.traffic.payload_bytes(0), job.simulated.traffic.payload_bytes(0));
      const Sets waits = {"pipeline.order=zero-bubble-h2", "train.clip_norm=0"};
      EXPECT_EQ(job.simulated.traffic.payload_bytes(0),
                make_job(run_of(waits + sets), 4).simulated.traffic.payload_bytes(0));
    }
}

TEST_F(PostValidation, MemoryIsWhatTheAllocatorSaw) {
  for (const char* preset : {"ddp", "zero1", "zero3"})
    for (const int64_t stages : {2, 4}) {
      SCOPED_TRACE(std::string(preset) + ", " + std::to_string(stages) + " stages");
      const Seen seen = train(kPostValidates + Sets{"mesh.axes.stage=" + std::to_string(stages),
                                                    std::string("placement.preset=") + preset},
                              4);
      test::expect_predicted_memory(seen.outcome);
    }
}

/// What a void step would leave behind.
TEST_F(PostValidation, WhatOutlivesAStepIsRefused) {
  const Sets sets = kPostValidates + Sets{"mesh.axes.stage=2", "train.precision=fp32"};
  const auto refusal = [&](const Sets& more, int64_t ranks) -> std::string {
    try {
      make_job(run_of(sets + more), ranks);
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key, "pipeline.post_validation") << error.what();
      return error.what();
    }
    return "";
  };
  const auto codecs = [](const std::string& gradients) {
    return Sets{"placement.preset=zero2", "placement.codecs.gradients=[\"" + gradients + "\"]"};
  };
  EXPECT_NE(refusal(codecs("int8/64+ef"), 4).find("a codec without error feedback"),
            std::string::npos);
  EXPECT_EQ(refusal(codecs("int8/64"), 4), "");
  EXPECT_NE(
      refusal({"placement.preset=zero++", kLevels}, 8).find("placement.spans.secondary = \"none\""),
      std::string::npos);
}

}  // namespace
}  // namespace strait
