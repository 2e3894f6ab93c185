// Ranks on the three-dimensional tensor grid (specs: AxoNN 5.b) train as one rank does: every grid
// of up to eight ranks along x, y, z and data, every placement; their bytes, checkpoints and
// hashes, and what is refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "strait/base/errors.h"
#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Bytes;
using test::small_run;
using test::Trained;

struct Grid {
  int64_t x, y, z, data;
  std::string placement;
  bool tied = true;
  std::string family = "gpt2";
  int64_t micro_batches = 2;
  int64_t ranks() const { return x * y * z * data; }
  std::string text() const {
    return fmt::format("{} x {} x {}, data {}, {}, {}{}", x, y, z, data, placement, family,
                       tied ? " tied" : " untied");
  }
};

class TensorGrid : public test::MeshRuns {
 public:
  static constexpr int64_t kGlobalBatch = 8;

 protected:
  strait::Run run_of(const Grid& grid, const std::vector<std::string>& more = {}) {
    const bool gpt2 = grid.family == "gpt2";
    std::vector<std::string> sets = {
        "mesh.axes.x=" + std::to_string(grid.x),
        "mesh.axes.y=" + std::to_string(grid.y),
        "mesh.axes.z=" + std::to_string(grid.z),
        "placement.preset=" + grid.placement,
        "train.global_batch_size=" + std::to_string(kGlobalBatch),
        "train.micro_batch_size=" +
            std::to_string(kGlobalBatch / (grid.z * grid.data) / grid.micro_batches),
        "train.clip_norm=0.3",
        "runtime.threads_per_rank=1",
        "model.shape.layers=2",
        "model.shape.heads=8",
        "model.shape.width=16",
        "model.shape.ffn_width=24",
        "model.shape.context=7",
        "model.shape.vocabulary=24",
        "model.shape.dropout=0.1",
        std::string("model.shape.tied_head=") + (grid.tied ? "true" : "false"),
        "model.family=" + grid.family,
        gpt2 ? "model.shape.kv_heads=8" : "model.shape.kv_heads=4"};
    sets.insert(sets.end(), more.begin(), more.end());
    return small_run(folder_.path(), sets);
  }
  Trained train(const Grid& grid, const std::vector<std::string>& more = {}) {
    return test::trained(run_of(grid, more), grid.ranks(), next_folder());
  }
  const Trained& serial(const Grid& grid) {
    const auto [found, fresh] = serial_.try_emplace({grid.family, grid.tied});
    if (fresh) found->second = train({1, 1, 1, 1, "ddp", grid.tied, grid.family});
    return found->second;
  }

 private:
  std::map<std::pair<std::string, bool>, Trained> serial_;
};

std::vector<Grid> grids() {
  std::vector<Grid> all;
  const std::vector<std::array<int64_t, 2>> tensor = {{1, 2}, {1, 4}, {1, 8}, {2, 1}, {2, 2},
                                                      {2, 4}, {4, 1}, {4, 2}, {8, 1}};
  for (const auto& [x, y] : tensor)
    for (const bool tied : {true, false}) all.push_back({x, y, 1, 1, "ddp", tied});
  for (const char* placement : {"ddp", "zero1", "zero2", "zero3"})
    for (const auto& [x, y] : {std::array{1, 2}, std::array{2, 1}, std::array{2, 2}})
      all.push_back({x, y, 1, 2, placement, placement[4] != '1'});
  for (const auto& [x, y] : {std::array{1, 2}, std::array{2, 1}, std::array{2, 2}}) {
    all.push_back({x, y, 2, 1, "zero3", x == y});
    if (x * y == 2)
      for (const char* placement : {"hsdp", "mics"}) all.push_back({x, y, 2, 2, placement, x == 1});
  }
  all.push_back({1, 1, 4, 2, "hsdp"});
  all.push_back({1, 2, 4, 1, "zero3"});
  all.push_back({1, 1, 2, 4, "mics"});
  for (const auto& [x, y] : {std::array{1, 4}, std::array{2, 2}, std::array{4, 2}})
    all.push_back({x, y, 1, 1, "ddp", false, "llama"});
  all.push_back({2, 2, 2, 1, "zero3", true, "llama"});
  all.push_back({1, 2, 2, 2, "hsdp", false, "llama"});
  all.push_back({1, 4, 1, 2, "zero1", true, "llama"});
  return all;
}

TEST_F(TensorGrid, EqualsOneRank) {
  const std::vector<Grid> all = grids();
  EXPECT_GE(all.size(), 40U);
  for (const Grid& grid : all) {
    SCOPED_TRACE(grid.text());
    expect_equal(train(grid), serial(grid));
  }
}

TEST_F(TensorGrid, EqualsOneRankWithRecomputation) {
  for (const char* recompute : {"block", "every:2"}) {
    const Grid grid{2, 2, 1, 2, "zero3"};
    expect_equal(train(grid, {std::string("train.recompute=") + recompute}), serial(grid));
  }
}

/// Norms behind branches, and of all queries and keys of a row.
TEST_F(TensorGrid, EveryFamilyEqualsOneRank) {
  for (const char* family : {"olmo2", "qwen3", "mistral", "gemma2", "gemma3"}) {
    const bool whole_rows = family[0] == 'o';
    const Grid grid{whole_rows ? 1 : 2, 2, 1, 1, "ddp", false, family};
    SCOPED_TRACE(grid.text());
    const bool gemma = family[0] == 'g';
    std::vector<std::string> sets = {
        "model.shape.bias=false", whole_rows || gemma ? "model.shape.dropout=0" : "train.steps=20"};
    if (gemma) sets.insert(sets.end(), {"model.shape.window=5", "model.shape.window_pattern=2"});
    if (gemma) sets.push_back("model.shape.logit_cap=1");
    if (family == std::string("gemma2")) sets.push_back("model.shape.score_cap=0.1");
    expect_equal(train(grid, sets), train({1, 1, 1, 1, "ddp", false, family}, sets));
  }
}

TEST_F(TensorGrid, Bfloat16TrainsAlongsideOneRank) {
  const std::vector<std::string> narrow = {"train.precision=bf16", "train.steps=8"};
  const Trained want = train({1, 1, 1, 1, "ddp"}, narrow);
  for (const Grid& grid : {Grid{1, 2, 1, 1, "ddp"}, Grid{2, 2, 1, 2, "zero3"}}) {
    SCOPED_TRACE(grid.text());
    const Trained got = train(grid, narrow);
    // Roundings at other places move a loss by less than one of them, 2^-8 of it.
    for (size_t step = 0; step < want.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], want.losses[step], 0x1p-8 * want.losses[step]) << step;
  }
}

TEST_F(TensorGrid, DepthAloneIsZero3BitForBit) {
  for (const int64_t ranks : {2, 4, 8}) {
    const std::vector<std::string> fp32 = {"train.precision=fp32"};
    Grid deep{1, 1, ranks, 1, "zero3"}, flat{1, 1, 1, ranks, "zero3"};
    deep.micro_batches = flat.micro_batches = 1;
    const Trained got = train(deep, fp32), want = train(flat, fp32);
    EXPECT_EQ(got.hash, want.hash) << ranks;
    EXPECT_EQ(got.losses, want.losses) << ranks;
  }
}

TEST_F(TensorGrid, CheckpointsGoFromAnyGridToAnyOther) {
  const std::vector<Grid> parts = {{2, 2, 1, 2, "zero1"}, {1, 1, 4, 1, "zero3"},
                                   {1, 4, 1, 1, "ddp"},   {1, 2, 2, 2, "hsdp"},
                                   {1, 1, 1, 1, "ddp"},   {4, 2, 1, 1, "ddp"}};
  const std::string run_dir = next_folder();
  Trained got;
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t until = 20 * static_cast<int64_t>(part + 1) / static_cast<int64_t>(parts.size());
    const strait::Run run =
        run_of(parts[part], {"train.steps=" + std::to_string(until), "checkpoint.resume=auto",
                             "optimizer.decay_steps=20"});
    SCOPED_TRACE(parts[part].text());
    got = test::trained(run, parts[part].ranks(), run_dir);
  }
  expect_equal(got, serial({1, 1, 1, 1, "ddp"}));
}

TEST_F(TensorGrid, HashesDoNotDependOnTheGrid) {
  const auto hash_at_the_start = [&](const Grid& grid) {
    return train(grid, {"train.steps=1", "optimizer.learning_rate=0", "optimizer.weight_decay=0",
                        "optimizer.warmup_steps=0"})
        .hash;
  };
  const std::string want = hash_at_the_start({1, 1, 1, 1, "ddp"});
  for (const Grid& grid : {Grid{1, 4, 1, 1, "ddp"}, Grid{2, 2, 1, 2, "zero3"},
                           Grid{2, 1, 2, 2, "hsdp"}, Grid{4, 2, 1, 1, "zero1"}})
    EXPECT_EQ(hash_at_the_start(grid), want) << grid.text();
}

/// Elements that a rank holds of a unit.
int64_t local_elements(const Grid& grid, const UnitShape& unit, const ShapeOptions& options) {
  int64_t elements = 0;
  for (const ParameterShape& parameter : unit.parameters) {
    const std::string& name = parameter.name;
    const bool matrix = parameter.dims.size() == 2;
    const bool rows_of_x = name.ends_with("qkv.bias") || name.ends_with("up.bias");
    const bool x = name.ends_with("position.weight") ? false : matrix || rows_of_x;
    elements += parameter.elements() / (x ? grid.x : 1) / (rows_of_x ? 1 : grid.y);
  }
  EXPECT_GT(options.width, 0);
  return elements;
}

/// One step on pairs of ranks: what placements move along z and data, for each place on x and y; of
/// each block and micro-batch four sums over x of columns of the residual stream, and over y two
/// products and two moments of the forward, two products and two moments of the backward.
Bytes closed_form(const Grid& grid, const strategy::Design& design) {
  const ShapeOptions& options = design.shape.options;
  const bool rms = design.shape.style.rms_norm, gated = design.shape.style.gated;
  const int64_t places = grid.x * grid.y, positions = grid.z * grid.data;
  Bytes bytes;
  for (const UnitShape& unit : design.shape.units) {
    const int64_t m = local_elements(grid, unit, options) * 8;
    const int64_t uses = unit.name.starts_with("blocks.") || grid.tied ? 2 : 1;
    const auto along_data = [&](const char* operation, int64_t vectors) {
      for (int64_t place = 0; place < places; ++place)
        test::add_exchange(bytes, operation, vectors * m, {positions, places});
    };
    if (grid.placement == "ddp") along_data("all-reduce", 2);
    if (grid.placement == "zero3") {
      along_data("reduce-scatter", grid.micro_batches);
      along_data("all-gather", grid.micro_batches * uses);
    }
  }
  const int64_t tokens = TensorGrid::kGlobalBatch * options.context;
  const int64_t rows_of_place = tokens;  // of all positions and micro-batches together
  const int64_t head = options.head_elements();
  const int64_t qkv = (options.heads + 2 * options.kv_heads) * head;
  const int64_t up = (gated ? 2 : 1) * options.ffn_width;
  const int64_t moments = rms ? 1 : 2;
  const auto over_x = [&](int64_t numbers) {
    for (int64_t place = 0; place < grid.y; ++place)
      test::add_exchange(bytes, "all-reduce", 2 * numbers * 8, {grid.x, 1});
  };
  const auto over_y = [&](int64_t numbers) {
    for (int64_t place = 0; place < grid.x; ++place)
      test::add_exchange(bytes, "all-reduce", 2 * numbers * 8, {grid.y, grid.x});
  };
  over_x(rows_of_place * options.layers * 4 * options.width / grid.y);
  over_y(rows_of_place * options.layers *
         ((qkv + up + options.heads * head + options.ffn_width) / grid.x + 4 * moments));
  // Embedding; parts of the loss; gradient of what the logits are made from. Logits; moments.
  over_x(rows_of_place * (2 * options.width / grid.y + 3 * grid.x));
  over_y(rows_of_place * (design.shape.vocabulary / grid.x + 2 * moments));
  test::add_exchange(bytes, "all-reduce", 2 * test::kAgreedBytes, {grid.ranks(), 1}, true);
  std::erase_if(bytes, [](const auto& row) { return row.second == 0; });
  return bytes;
}

TEST_F(TensorGrid, BytesAreClosedFormsInAllReaders) {
  for (const Grid& grid :
       {Grid{1, 2, 1, 1, "ddp"}, Grid{2, 2, 1, 1, "ddp"}, Grid{2, 2, 1, 2, "ddp", false},
        Grid{1, 2, 1, 4, "zero3"}, Grid{2, 1, 2, 1, "zero3"}, Grid{2, 2, 2, 1, "zero3", false},
        Grid{1, 2, 2, 1, "zero3", true, "llama"}, Grid{2, 2, 1, 1, "ddp", false, "llama"}}) {
    SCOPED_TRACE(grid.text());
    strait::Run run = run_of(grid, {"train.steps=3", test::kPairs});
    run.output.run_dir = next_folder();
    const Job job = make_job(run, grid.ranks());
    const train::Outcome outcome = test::outcome_of(job);
    const Bytes want = closed_form(grid, job.design);
    test::expect_bytes(job, outcome.traffic, 3, want);
  }
}

TEST_F(TensorGrid, MemoryIsWhatTheAllocatorSaw) {
  for (const Grid& grid : {Grid{2, 2, 1, 2, "zero3"}, Grid{1, 4, 1, 1, "ddp"}}) {
    SCOPED_TRACE(grid.text());
    const train::Outcome outcome =
        test::train_small(run_of(grid, {"train.steps=3"}), grid.ranks(), next_folder());
    test::expect_predicted_memory(outcome);
  }
}

TEST_F(TensorGrid, WhatDoesNotDivideIsRefused) {
  const auto refusal = [&](const Grid& grid, const std::vector<std::string>& sets) -> std::string {
    try {
      make_job(run_of(grid, sets), grid.ranks());
    } catch (const UserError& error) {
      return error.place().key.value_or("no key") + ": " + error.what();
    }
    return "accepted";
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal({1, 3, 1, 1, "ddp"}, {}), HasSubstr("mesh.axes.y: "));
  EXPECT_THAT(refusal({2, 1, 1, 1, "ddp"}, {"model.shape.vocabulary=25"}),
              HasSubstr("model.shape.vocabulary = 26"));
  EXPECT_THAT(refusal({1, 1, 2, 2, "zero1"}, {}),
              HasSubstr("nearest: placement.preset = \"hsdp\""));
  EXPECT_THAT(refusal({1, 2, 1, 1, "ddp"}, {"mesh.axes.y=3"}), HasSubstr("does not divide"));
}

}  // namespace
}  // namespace strait
