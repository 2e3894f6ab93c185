// A U-Net learns to tell noise from images: as LibTorch alone trains it, and the same under every
// placement, mesh and order.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "strait/base/errors.h"
#include "strait/kernel/normal.h"
#include "strait/model/unet_blocks.h"
#include "tests/train/torch_peer.h"
#include "tests/train/unet_runs.h"

namespace strait {
namespace {

using at::Tensor;
using test::Trained;
using Sets = std::vector<std::string>;
using Weights = test::TorchPeer::Weights;

/// A U-Net as one would write it down: no blocks, a stack of skips.
struct PlainUnet {
  const UnetOptions& options;
  const Weights& weights;

  Tensor convolution(const std::string& name, const Tensor& x, int64_t stride = 1) const {
    const Tensor& w = weights.at(name + ".weight");
    return at::conv2d(x, w, weights.at(name + ".bias"), stride, w.size(2) / 2);
  }
  Tensor linear(const std::string& name, const Tensor& x) const {
    return x.matmul(weights.at(name + ".weight").t()) + weights.at(name + ".bias");
  }
  Tensor norm(const std::string& name, const Tensor& x) const {
    const int64_t batch = x.size(0), channels = x.size(1), groups = unet_groups(channels);
    const Tensor rows = x.reshape({batch, groups, -1});
    const Tensor mean = rows.mean(-1, true);
    const Tensor normed =
        ((rows - mean) / (rows - mean).square().mean(-1, true).add(1e-6).sqrt()).reshape(x.sizes());
    return normed * weights.at(name + ".weight").reshape({1, channels, 1, 1}) +
           weights.at(name + ".bias").reshape({1, channels, 1, 1});
  }
  static Tensor swish(const Tensor& x) { return x * x.sigmoid(); }

  Tensor residual(const std::string& name, const Tensor& x, const Tensor& time) const {
    Tensor h = convolution(name + ".conv1", swish(norm(name + ".norm1", x)));
    h = h + linear(name + ".time", swish(time)).reshape({x.size(0), -1, 1, 1});
    h = convolution(name + ".conv2", swish(norm(name + ".norm2", h)));
    const bool same = x.size(1) == h.size(1);
    return h + (same ? x : convolution(name + ".shortcut", x));
  }
  Tensor attention(const std::string& name, const Tensor& x) const {
    const int64_t channels = x.size(1);
    const Tensor qkv = convolution(name + ".qkv", norm(name + ".norm", x)).flatten(2);
    const Tensor q = qkv.slice(1, 0, channels), k = qkv.slice(1, channels, 2 * channels),
                 v = qkv.slice(1, 2 * channels);
    const Tensor scores = q.transpose(1, 2).matmul(k) / std::sqrt(static_cast<double>(channels));
    const Tensor mixed = scores.softmax(-1).matmul(v.transpose(1, 2)).transpose(1, 2);
    return x + convolution(name + ".output", mixed.reshape(x.sizes()));
  }

  Tensor operator()(const Tensor& images, const Tensor& steps) const {
    const int64_t width = options.channels.front();
    const Tensor frequencies =
        at::pow(10'000.0, at::arange(width / 2, at::kDouble) * (-2.0 / double(width)));
    const Tensor angles = steps.reshape({-1, 1}) * frequencies;
    const Tensor time = linear(
        "enter.time.1", swish(linear("enter.time.0", at::cat({angles.sin(), angles.cos()}, 1))));
    std::vector<Tensor> skips = {convolution("enter.conv", images)};
    const auto levels = static_cast<int64_t>(options.channels.size());
    const auto attends = [&](const Tensor& x) { return x.size(2) <= options.attention_from; };
    for (int64_t level = 0; level < levels; ++level) {
      for (int64_t i = 0; i < options.residual_blocks; ++i) {
        const std::string name = "down." + std::to_string(level) + "." + std::to_string(i);
        Tensor x = residual(name + ".residual", skips.back(), time);
        if (attends(x)) x = attention(name + ".attention", x);
        skips.push_back(x);
      }
      if (level + 1 == levels) break;
      const std::string last = std::to_string(options.residual_blocks - 1);
      skips.push_back(
          convolution("down." + std::to_string(level) + "." + last + ".resample", skips.back(), 2));
    }
    Tensor x = residual("middle.0.residual", skips.back(), time);
    x = residual("middle.1.residual", attention("middle.0.attention", x), time);
    for (int64_t level = levels - 1; level >= 0; --level)
      for (int64_t i = 0; i <= options.residual_blocks; ++i) {
        const std::string name = "up." + std::to_string(level) + "." + std::to_string(i);
        x = residual(name + ".residual", at::cat({x, skips.back()}, 1), time);
        skips.pop_back();
        if (attends(x)) x = attention(name + ".attention", x);
        if (level > 0 && i == options.residual_blocks)
          x = convolution(name + ".resample", x.repeat_interleave(2, 2).repeat_interleave(2, 3));
      }
    return convolution("leave.conv", swish(norm("leave.norm", x)));
  }
};

/// However many steps there are, the first leaves an image and the last does not; of 1,000 they are
/// those of Ho et al.
TEST(Diffusion, AnImageBecomesNoiseInAnyNumberOfSteps) {
  for (const int64_t steps : {10, 50, 100, 250, 1000, 4000}) {
    const std::vector<double> kept = model::kept_signal(steps);
    ASSERT_EQ(std::ssize(kept), steps);
    EXPECT_GT(kept.front(), 0.98) << steps;
    EXPECT_LT(kept.back(), 1e-4);
    EXPECT_GT(kept.back(), 0);
  }
  EXPECT_LT(model::kept_signal(1).back(), 0.01);
  double product = 1;
  for (int step = 0; step < 1000; ++step) product *= 1 - (1e-4 + (0.02 - 1e-4) * step / 999.0);
  EXPECT_NEAR(model::kept_signal(1000).back(), product, 1e-12 * product);
}

using UnetRuns = test::UnetRuns;

/// Its images as numbers, with the noise and the step that a run draws for them.
struct Drawn {
  Tensor noisy, noise, steps;

  Drawn(const strait::Run& run, const BatchBuffer& batch) {
    const UnetOptions& options = run.model.unet;
    const auto count = static_cast<int64_t>(batch.sequences.size());
    const std::vector<double> kept = model::kept_signal(options.diffusion_steps);
    noise = at::empty({count, options.colors, options.image, options.image}, at::kDouble);
    steps = at::empty({count}, at::kDouble);
    noisy = at::empty_like(noise);
    for (int64_t row = 0; row < count; ++row) {
      const model::Diffusion draw =
          model::draw_diffusion(options, run.seed, true, batch.sequences[size_t(row)]);
      kernel::NormalCall<double> call;
      call.key = draw.noise_key;
      call.count = noise[row].numel();
      call.out = noise[row].data_ptr<double>();
      kernel::normal(call);
      steps[row] = double(draw.step);
      const auto* first = batch.inputs.data() + row * call.count;
      const Tensor image = at::tensor(std::vector<double>(first, first + call.count))
                               .div(127.5)
                               .sub(1.0)
                               .reshape(noise[row].sizes());
      const double share = kept[size_t(draw.step)];
      noisy[row] = std::sqrt(share) * image + std::sqrt(1 - share) * noise[row];
    }
  }
};

TEST_F(UnetRuns, TwentyStepsEqualThoseOfLibTorch) {
  for (const Sets& sizes :
       std::vector<Sets>{{}, {"model.unet.residual_blocks=2", "model.unet.channels=4,8,12"}}) {
    Sets sets = {"train.micro_batch_size=8", "train.clip_norm=0"};
    sets.insert(sets.end(), sizes.begin(), sizes.end());
    const strait::Run run = run_of(sets);
    Weights weights;
    for (const UnitShape& unit : model_shape(run.model, kPixelLevels).units)
      for (const ParameterShape& parameter : unit.parameters) {
        weights[parameter.name] = at::empty(parameter.dims, at::kDouble);
        UnitShape alone{unit.name, {parameter}, {}, parameter.elements()};
        alone.parameters.front().offset = 0;
        model::initialize(alone, run.seed, Dtype::kFloat64, ElementRuns{{0, parameter.elements()}},
                          weights[parameter.name].data_ptr());
      }
    test::TorchPeer peer(weights, [&](const Weights& values, const BatchBuffer& batch) {
      const Drawn drawn(run, batch);
      return (PlainUnet{run.model.unet, values}(drawn.noisy, drawn.steps) - drawn.noise)
          .square()
          .mean();
    });
    const std::vector<double> losses = test::expect_equal_to_peer(run, next_folder(), peer, 1e-9);
    EXPECT_LT(losses.back(), 0.8 * losses.front());
  }
}

/// A batch is drawn for its sequences: no rank, micro-batch, order or mesh changes a number.
struct UnetCase {
  int64_t ranks;
  Sets sets;
};

TEST_F(UnetRuns, EveryPlacementMeshAndOrderTrainsWhatOneRankTrains) {
  const std::string levels =
      "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0 }, { name = \"world\", "
      "size = 0, gb_per_second = 1.0 }]";
  const std::vector<UnetCase> cases = {
      {1, {"train.micro_batch_size=1"}},
      {2, {"placement.preset=ddp"}},
      {2, {"placement.preset=zero3"}},
      {4, {"placement.preset=zero1"}},
      {4, {"placement.preset=zero2"}},
      {4, {"placement.preset=zero3", "placement.prefetch_units=2"}},
      {4, {"placement.preset=hsdp", levels}},
      {4, {"placement.preset=mics", levels}},
      {4, {"placement.preset=zero3", "mesh.axes.z=4"}},
      {4, {"placement.preset=hsdp", "mesh.axes.z=2", levels}},
      {2, {"mesh.axes.stage=2", "pipeline.order=gpipe", "train.micro_batch_size=2"}},
      {2, {"mesh.axes.stage=2", "pipeline.order=1f1b", "train.micro_batch_size=1"}},
      {3, {"mesh.axes.stage=3", "pipeline.order=1f1b", "train.micro_batch_size=1"}},
      {4, {"mesh.axes.stage=4", "pipeline.order=1f1b", "train.micro_batch_size=2"}},
      {2,
       {"mesh.axes.stage=2", "pipeline.order=interleaved", "pipeline.chunks_per_stage=2",
        "train.micro_batch_size=2"}},
      {4, {"mesh.axes.stage=2", "placement.preset=zero1", "train.micro_batch_size=1"}},
      {4, {"mesh.axes.stage=2", "placement.preset=zero3", "train.micro_batch_size=1"}},
      {2, {"mesh.axes.x=2", "placement.preset=ddp"}},
      {4, {"mesh.axes.x=2", "placement.preset=zero3"}},
      {4, {"mesh.axes.x=2", "placement.preset=zero1", "train.micro_batch_size=1"}},
      {8, {"mesh.axes.x=2", "mesh.axes.z=2", "placement.preset=hsdp", levels}},
      {4, {"mesh.axes.x=2", "mesh.axes.stage=2", "train.micro_batch_size=2"}},
      {8,
       {"mesh.axes.x=2", "mesh.axes.stage=2", "placement.preset=zero2",
        "train.micro_batch_size=1"}},
      {8, {"mesh.axes.stage=4", "placement.preset=zero2", "train.micro_batch_size=1"}},
      {8,
       {"mesh.axes.stage=2", "mesh.axes.z=2", "placement.preset=hsdp", levels,
        "train.micro_batch_size=1"}}};
  for (const UnetCase& c : cases) {
    SCOPED_TRACE(std::to_string(c.ranks) + " " + ::testing::PrintToString(c.sets));
    expect_equal(train(c.ranks, c.sets), serial());
  }
}

TEST_F(UnetRuns, ResumingInAnotherMeshChangesNothing) {
  const std::string run_dir = next_folder();
  const auto until = [&](int64_t steps, int64_t ranks, Sets sets) {
    sets.insert(sets.end(), {"train.steps=" + std::to_string(steps), "checkpoint.resume=auto"});
    return test::trained(run_of(sets), ranks, run_dir);
  };
  until(6, 2, {"mesh.axes.stage=2"});
  until(11, 4, {"placement.preset=zero3"});
  until(16, 4, {"mesh.axes.x=2"});
  expect_equal(until(20, 1, {}), serial());
}

/// Scores of attention among many pixels take more than everything else together.
TEST_F(UnetRuns, MemoryCountsWhatLibTorchTakes) {
  const Sets high = {"model.unet.image=16", "model.unet.attention_from=16",
                     "data.path=synthetic:images/size=16/colors=2/count=200", "train.steps=2"};
  for (const auto& [ranks, sets] : std::vector<std::pair<int64_t, Sets>>{
           {1, {}}, {2, {"mesh.axes.x=2"}}, {4, {"mesh.axes.x=2", "mesh.axes.y=2"}}}) {
    Sets all = high;
    all.insert(all.end(), sets.begin(), sets.end());
    const train::Outcome outcome = test::train_small(run_of(all), ranks, next_folder());
    test::expect_predicted_memory(outcome);
    all.push_back("model.unet.attention_from=0");
    const train::Outcome plain = test::train_small(run_of(all), ranks, next_folder());
    test::expect_predicted_memory(plain);
    EXPECT_GT(outcome.pool_peak_bytes[0], 2 * plain.pool_peak_bytes[0]);
  }
}

TEST_F(UnetRuns, MemoryIsWhatTheAllocatorSaw) {
  for (const Sets& sets : std::vector<Sets>{
           {"placement.preset=zero3"}, {"mesh.axes.stage=2", "train.steps=2"}, {"mesh.axes.x=2"}})
    test::expect_predicted_memory(test::train_small(run_of(sets), 2, next_folder()));
}

/// Against what is lost by calling everything noiseless, on the run's own draws; and validation is
/// drawn once, so that it may be compared.
TEST_F(UnetRuns, LearnsAtLeastHalfOfTheNoise) {
  const Sets sets = {
      "train.steps=250",           "train.precision=fp32",         "train.micro_batch_size=8",
      "model.unet.channels=16,32", "optimizer.learning_rate=2e-3", "evaluation.every_steps=125"};
  strait::Run run = run_of(sets);
  std::vector<double> nothing;  // of each step
  train::Observer observer;
  observer.loaded = [&](int64_t, const BatchBuffer& batch) {
    nothing.push_back(Drawn(run, batch).noise.square().mean().item<double>());
  };
  const train::Outcome outcome = test::train_small(run, 1, next_folder(), observer);
  const size_t tail = 50;
  double learned = 0, zero = 0;
  for (size_t step = nothing.size() - tail; step < nothing.size(); ++step) {
    learned += outcome.losses[step];
    zero += nothing[step];
  }
  EXPECT_LT(learned, 0.5 * zero) << learned / tail << " of " << zero / tail;
  EXPECT_NEAR(outcome.losses.front(), nothing.front(), 1e-5);  // it begins with predicting zero
  ASSERT_EQ(outcome.validation.size(), 2u);
  EXPECT_LT(outcome.validation.back().loss, outcome.validation.front().loss);
  const Trained sharded = test::trained(run_of(sets), 1, next_folder());
  EXPECT_EQ(sharded.validation, outcome.validation.back().loss);
}

TEST_F(UnetRuns, NarrowNumbersTrainAlongside) {
  for (const char* sharing : {"placement.preset=zero3", "mesh.axes.x=2"}) {
    const Trained narrow = train(2, {"train.precision=bf16", sharing});
    for (size_t step = 0; step < narrow.losses.size(); ++step)
      EXPECT_NEAR(narrow.losses[step], serial().losses[step], 0x1p-5 * serial().losses[step])
          << sharing << " " << step;
  }
}

TEST_F(UnetRuns, WhatCannotActOnAUnetIsRefused) {
  const auto expect_refused = [&](const Sets& sets, const std::string& key, const std::string& text,
                                  int64_t ranks = 2) {
    SCOPED_TRACE(key + " " + text);
    try {
      make_job(run_of(sets), ranks);
      FAIL() << "accepted";
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key.value_or(""), key) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  expect_refused({"mesh.axes.y=8"}, "mesh.axes.y", "nearest valid value is 4", 8);
  expect_refused({"mesh.axes.sequence=2"}, "mesh.axes.sequence", "nearest valid value is 1");
  expect_refused({"mesh.axes.x=4"}, "mesh.axes.x", "nearest valid value is 2", 4);
  const std::string uncut = "model.family = \"unet\", whose blocks are not cut into products and ";
  for (const char* x : {"mesh.axes.x=1", "mesh.axes.x=2"}) {
    expect_refused({x, "tensor.overlap=[\"ors\"]"}, "tensor.overlap",
                   uncut + "rows; the nearest valid value is one with \"oar\"");
    for (const char* tiles : {"tensor.tiles=on", "tensor.tiles=on:1", "tensor.tiles=on:2"})
      expect_refused({x, tiles}, "tensor.tiles",
                     uncut + "rows; the nearest valid value is \"auto\"");
  }
  expect_refused({"placement.preset=zero3", "tensor.cached_gathers=9"}, "tensor.cached_gathers",
                 "= 9 of 8 blocks between the first and the last; nearest: 8");
  expect_refused({"mesh.axes.stage=2", "pipeline.order=zero-bubble-h1"}, "pipeline.order",
                 "\"1f1b\"");
  expect_refused({"mesh.axes.stage=16"}, "mesh.axes.stage", "nearest valid value is 8", 16);
  expect_refused({"train.recompute=every:2"}, "train.recompute", "\"block\"");
  expect_refused({"runtime.device=cuda"}, "runtime.device", "\"cpu\"");
  expect_refused({"model.shape.layers=3"}, "model.shape.layers", "model.unet");
  expect_refused({"model.shape.dropout=0.1"}, "model.shape.dropout", "cannot take effect");
  expect_refused({"model.unet.image=9"}, "model.unet.image", "nearest valid value is 10");
  expect_refused({"data.path=synthetic:images"}, "data.path", "size=8/colors=2");
  expect_refused({"data.path=synthetic:lengths/corpus"}, "data.path", "synthetic:images");
  expect_refused({"data.path=synthetic:images/size=8/color=2"}, "data.path", "'colors'");
  expect_refused({"data.path=synthetic:image"}, "data.path", "synthetic:images");
  expect_refused({"model.family=gpt2"}, "model.unet.channels", "model.family = \"unet\"");
  expect_refused({"data.tokenizer=ids:300"}, "data.tokenizer", "levels of a color");
}

}  // namespace
}  // namespace strait
