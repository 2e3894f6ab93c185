// What computing goes on beside (tensor.overlap, tensor.cached_gathers): no switch changes a bit,
// each changes the order of the program as it says, and hides what the order allows (specs:
// tensor4d 5.b).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/draft/segment_ops.h"
#include "strait/program/memory.h"
#include "strait/sim/simulate.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/mesh/three_blocks.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using program::Op;
using program::OpKind;
using test::small_run;
using test::Trained;
using Sets = std::vector<std::string>;

struct Case {
  int64_t x = 1, y = 1, z = 1, data = 1, stages = 1;
  std::string placement = "ddp";
  Sets more = {};
  std::string precision = "fp32";
  int64_t ranks() const { return x * y * z * data * stages; }
};

const std::string kNone = "tensor.overlap=[]", kAll = "tensor.overlap=[\"oar\",\"ors\",\"oag\"]";
const std::string kOar = "tensor.overlap=[\"oar\"]", kNoOar = "tensor.overlap=[\"ors\",\"oag\"]";
const std::string kNoOrs = "tensor.overlap=[\"oar\",\"oag\"]";
const std::string kNoOag = "tensor.overlap=[\"oar\",\"ors\"]";
const std::string kCached = "tensor.cached_gathers=2";
const Sets kLlama = {"model.family=llama", "model.shape.kv_heads=2", "model.shape.tied_head=false"};
const Sets kNormed = {"model.family=qwen3", "model.shape.bias=false", "model.shape.kv_heads=2"};

class OverlapSwitches : public test::MeshRuns {
 protected:
  strait::Run run_of(const Case& c, const Sets& more = {}) {
    Sets sets = {fmt::format("mesh.axes.x={}", c.x), fmt::format("mesh.axes.y={}", c.y),
                 fmt::format("mesh.axes.z={}", c.z), fmt::format("mesh.axes.stage={}", c.stages),
                 "placement.preset=" + c.placement,  "train.steps=4",
                 "train.global_batch_size=8",        "train.micro_batch_size=1",
                 "train.precision=" + c.precision,   "model.shape.context=16"};
    for (const Sets* other : {&test::kThreeBlocks, &c.more, &more})
      sets.insert(sets.end(), other->begin(), other->end());
    return small_run(folder_.path(), sets);
  }
  Trained train(const Case& c, const Sets& more) {
    return test::trained(run_of(c, more), c.ranks(), next_folder());
  }
  std::vector<Op> step_of(const Case& c, const Sets& more) {
    return test::steady_ops(make_job(run_of(c, more), c.ranks()));
  }
  std::string refusal(const Case& c, const Sets& sets) {
    return refusal_of([&] { make_job(run_of(c, sets), c.ranks()); });
  }
};

TEST_F(OverlapSwitches, SwitchesChangeNoBit) {
  const std::vector<Case> cases = {
      {.x = 2},
      {.x = 2, .y = 2, .more = kLlama, .precision = "bf16"},
      {.y = 2, .more = kLlama},
      {.x = 2, .y = 2, .more = kNormed},
      {.x = 2, .data = 2, .placement = "zero1", .more = kLlama},
      {.x = 2, .data = 2, .placement = "zero3"},
      {.x = 2, .z = 2, .placement = "hsdp", .more = {"train.recompute=block"}},
      {.y = 2, .z = 2, .data = 2, .placement = "hsdp"},
      {.x = 2, .stages = 2},
      {.x = 2,
       .stages = 2,
       .more = {"pipeline.order=zero-bubble-h1", "train.clip_norm=0", "train.non_finite=stop"}},
      {.data = 4, .placement = "zero3"},
      {.data = 4, .placement = "zero++", .more = {test::kPairs}}};
  for (const Case& c : cases) {
    const Trained want = train(c, {kAll});
    const bool grid = c.x > 1 || c.y > 1, reduces = c.z * c.data * c.stages > 1;
    std::vector<Sets> switches;
    if (reduces) switches = {{kNoOrs}};
    if (c.placement != "ddp" && c.placement != "zero1") switches.push_back({kNoOag});
    if (grid) switches.insert(switches.end(), {{kNone}, {kNoOar}});
    if (grid && reduces) switches.push_back({kOar});
    if (c.placement == "zero3" || c.placement == "hsdp" || c.placement == "zero++")
      switches.insert(switches.end(), {{kCached}, {kCached, kNoOag}});
    for (const Sets& sets : switches) {
      SCOPED_TRACE(fmt::format("{} x {} x {}, data {}, stages {}, {}, {}, {}", c.x, c.y, c.z,
                               c.data, c.stages, c.placement, c.precision, sets.front()));
      const Trained got = train(c, sets);
      EXPECT_EQ(got.losses, want.losses);
      EXPECT_EQ(got.hash, want.hash);
    }
  }
}

/// Behind the sums of gradients of up's and qkv's input stand the gradients of their weights and of
/// those before them, whose own have none to stand behind.
TEST_F(OverlapSwitches, SumsOfGradientsHaveProductsToHideBehind) {
  const auto behind_sums = [&](const Sets& sets) {
    std::vector<std::string> found;
    const std::vector<Op> ops = step_of({.x = 2}, sets);
    for (size_t at = 0; at < ops.size(); ++at) {
      const bool sums = ops[at].kind == OpKind::kAllReduce && at > 0 &&
                        ops[at - 1].kernel == &draft::kBackwardInput;
      for (size_t next = at + 1; sums && ops[next].kernel == &draft::kBackwardWeight; ++next)
        found.push_back(segment_name(static_cast<Segment>(draft::range_of(ops[next]).begin)));
    }
    found.resize(std::min<size_t>(found.size(), 4));
    return found;
  };
  EXPECT_EQ(behind_sums({kAll}), (std::vector<std::string>{"down", "up", "output", "qkv"}));
  EXPECT_TRUE(behind_sums({kNoOar}).empty());
}

/// Products of weights are cut, and still each is made once.
TEST_F(OverlapSwitches, TheWorkIsTheSame) {
  for (const Case& c : {Case{.x = 2, .more = kNormed}, Case{.x = 2, .y = 2, .more = kLlama}}) {
    const auto flops = [&](const Sets& sets) {
      return make_job(run_of(c, sets), c.ranks()).cost.flops;
    };
    EXPECT_DOUBLE_EQ(flops({kAll}), flops({kNoOar}));
  }
}

/// A link on which sums take about half the backward.
TEST_F(OverlapSwitches, EverySwitchHides) {
  const Sets large = {"model.shape.width=256",
                      "model.shape.ffn_width=1024",
                      "model.shape.context=256",
                      "model.shape.layers=8",
                      "train.precision=fp32",
                      "tensor.tiles=off",
                      "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 1.0, "
                      "latency_microseconds = 1.0 }]"};
  const auto seconds = [&](const Case& c, const Sets& more) {
    Sets sets = large;
    sets.insert(sets.end(), more.begin(), more.end());
    return make_job(run_of(c, sets), c.ranks()).simulated.seconds;
  };
  const Case grid{.x = 2}, sharded{.data = 4, .placement = "zero3"};
  EXPECT_LT(seconds(grid, {kAll}), 0.98 * seconds(grid, {kNoOar}));
  EXPECT_LT(seconds(sharded, {kAll}), 0.98 * seconds(sharded, {kNoOrs}));
  EXPECT_LT(seconds(sharded, {kAll}), 0.98 * seconds(sharded, {kNoOag}));
  // Hidden gathers need not be saved.
  EXPECT_LT(seconds(sharded, {kNoOag, kCached}), 0.98 * seconds(sharded, {kNoOag}));
}

TEST_F(OverlapSwitches, CachedGathersMoveTheirLayersOnce) {
  int64_t uncached = 0;
  for (const int64_t cached : {0, 1, 3}) {
    const Case c{.data = 4, .placement = "zero3"};
    strait::Run run =
        run_of(c, {"train.precision=fp64", "train.steps=3", "train.micro_batch_size=2",
                   fmt::format("tensor.cached_gathers={}", cached)});
    run.output.run_dir = next_folder();
    const Job job = make_job(run, c.ranks());
    const train::Outcome outcome = test::outcome_of(job);
    int64_t gathered = 0;
    for (const Traffic& row : outcome.traffic.rows())
      if (row.operation == "all-gather") gathered += row.payload_bytes / 3;
    if (cached == 0) uncached = gathered;
    const ModelShape& shape = job.design.shape;
    const int64_t elements = shape.units[static_cast<size_t>(shape.blocks[1].unit)].elements;
    EXPECT_EQ(gathered, uncached - cached * (c.ranks() - 1) * elements * 8) << cached;
    test::expect_predicted_memory(outcome);
  }
}

TEST_F(OverlapSwitches, WhatCannotTakeEffectIsRefused) {
  using testing::HasSubstr;
  const Case grid{.x = 2}, sharded{.data = 2, .placement = "zero3"};
  EXPECT_THAT(refusal(grid, {"tensor.overlap=[\"oars\"]"}), HasSubstr("oar"));
  EXPECT_THAT(refusal(sharded, {kNoOar}), HasSubstr("tensor.overlap: "));
  EXPECT_THAT(refusal(sharded, {kNoOag, "placement.prefetch_units=2"}),
              HasSubstr("placement.prefetch_units: placement.prefetch_units = 2 cannot take effect "
                        "where tensor.overlap lacks \"oag\"; nearest: 0"));
  EXPECT_EQ(refusal(sharded, {kNoOag, "placement.prefetch_units=0"}), "accepted");
  EXPECT_EQ(refusal(sharded, {kNoOag, "placement.prefetch_units=1"}), "accepted");  // the default
  const Case whole{.data = 2, .placement = "zero2"}, alone{.placement = "zero3"};
  for (const std::string units : {"0", "2"})
    EXPECT_THAT(refusal(whole, {"placement.prefetch_units=" + units}),
                HasSubstr("cannot take effect where weights are whole on every rank; nearest: 1"));
  EXPECT_EQ(refusal(alone, {"placement.prefetch_units=2"}), "accepted");
  EXPECT_THAT(refusal(whole, {kNoOag}), HasSubstr("tensor.overlap = [\"oar\", \"ors\"] cannot "
                                                  "take effect where no weights are gathered; "
                                                  "nearest: [\"oar\", \"ors\", \"oag\"]"));
  EXPECT_EQ(refusal(whole, {kNoOrs}), "accepted");
  EXPECT_THAT(refusal(alone, {kNoOrs}), HasSubstr("where no gradients are reduced; nearest"));
  EXPECT_THAT(refusal(grid, {kOar}),
              HasSubstr("where no gradients are reduced and no weights gathered; nearest"));
  EXPECT_EQ(refusal(grid, {kNone}), "accepted");
  EXPECT_THAT(refusal(sharded, {"tensor.cached_gathers=4"}),
              HasSubstr("tensor.cached_gathers: tensor.cached_gathers = 4 of 3 transformer blocks; "
                        "nearest: 3"));
  EXPECT_THAT(refusal(grid, {kCached}), HasSubstr("weights are whole on every rank"));
}

}  // namespace
}  // namespace strait
