// A U-Net on the tensor grid: ranks of x and y share its blocks, beside every other axis. It trains
// as one rank does; bytes are closed forms of its sizes; memory, checkpoints, evaluation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "strait/shape/unet.h"
#include "tests/train/exchanged_bytes.h"
#include "tests/train/unet_runs.h"

namespace strait {
namespace {

using test::Bytes;
using test::Trained;

struct Grid {
  int64_t x = 1, y = 1, z = 1, data = 1, stage = 1;
  std::string placement = "ddp";
  int64_t ranks() const { return x * y * z * data * stage; }
  std::string text() const {
    return fmt::format("x {} y {} z {} data {} stage {} {}", x, y, z, data, stage, placement);
  }
};

/// Norms of 8 and 16 channels have 4 and 8 groups; joined maps have 24 and 32 channels.
class UnetGrid : public test::UnetRuns {
 protected:
  strait::Run run_of(const Grid& grid, const Sets& more = {}) {
    const int64_t replicas = grid.z * grid.data;
    Sets sets = {fmt::format("mesh.axes.x={}", grid.x),
                 fmt::format("mesh.axes.y={}", grid.y),
                 fmt::format("mesh.axes.z={}", grid.z),
                 fmt::format("mesh.axes.stage={}", grid.stage),
                 "placement.preset=" + grid.placement,
                 "train.clip_norm=0.3",
                 fmt::format("train.micro_batch_size={}", std::max<int64_t>(4 / replicas, 1)),
                 "model.unet.channels=8,16",
                 "model.unet.image=4",
                 "model.unet.attention_from=2",
                 "data.path=synthetic:images/size=4/colors=2/count=200"};
    if (grid.placement == "hsdp" || grid.placement == "mics")
      sets.push_back(
          "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = 10.0 }, { name = "
          "\"world\", size = 0, gb_per_second = 1.0 }]");
    sets.insert(sets.end(), more.begin(), more.end());
    return UnetRuns::run_of(sets);
  }
  Trained train(const Grid& grid, const Sets& more = {}) {
    return test::trained(run_of(grid, more), grid.ranks(), next_folder());
  }
  const Trained& serial() {
    if (serial_.losses.empty()) serial_ = train({});
    return serial_;
  }

 private:
  Trained serial_;
};

const std::vector<Grid>& grids() {
  static const std::vector<Grid> all = {
      {1, 2},
      {1, 4},
      {1, 8},
      {2, 1},
      {4, 1},
      {2, 2},
      {2, 4},
      {4, 2},
      {1, 2, 1, 2, 1, "ddp"},
      {1, 2, 1, 2, 1, "zero1"},
      {1, 2, 1, 2, 1, "zero2"},
      {1, 2, 1, 4, 1, "zero3"},
      {1, 4, 1, 2, 1, "zero1"},
      {2, 2, 1, 2, 1, "ddp"},
      {2, 2, 1, 2, 1, "zero3"},
      {1, 2, 2, 1, 1, "zero3"},
      {2, 2, 2, 1, 1, "zero3"},
      {1, 2, 2, 2, 1, "hsdp"},
      {1, 2, 2, 2, 1, "mics"},
      {1, 1, 4, 2, 1, "hsdp"},
      {2, 1, 2, 2, 1, "hsdp"},
      {1, 2, 1, 1, 2},
      {1, 2, 1, 1, 4},
      {1, 4, 1, 1, 2},
      {2, 2, 1, 1, 2},
      {1, 2, 1, 2, 2, "zero2"},
      {1, 2, 2, 1, 2, "zero3"},
  };
  return all;
}

TEST_F(UnetGrid, EqualsOneRank) {
  for (const Grid& grid : grids()) {
    SCOPED_TRACE(grid.text());
    expect_equal(train(grid), serial());
  }
}

/// Eight groups are those of 16 channels.
TEST_F(UnetGrid, EightRanksOfXEqualOneRank) {
  const Sets wide = {"model.unet.channels=16", "model.unet.attention_from=4"};
  expect_equal(train({8, 1}, wide), train({}, wide));
}

TEST_F(UnetGrid, OverlapsChangeNoBit) {
  const Grid grid = {2, 2, 1, 2, 1, "zero3"};
  const Trained want = train(grid, {"train.steps=4"});
  const Trained got = train(grid, {"train.steps=4", "tensor.overlap=[\"oar\"]"});
  EXPECT_EQ(got.losses, want.losses);
  EXPECT_EQ(got.hash, want.hash);
}

TEST_F(UnetGrid, EvaluationsEqualOneRanks) {
  const Sets evaluates = {"evaluation.every_steps=10", "evaluation.batches=2",
                          "data.validation_share=0.2"};
  const Trained want = train({}, evaluates);
  EXPECT_FALSE(std::isnan(want.validation));
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}, Grid{1, 2, 1, 1, 2}}) {
    SCOPED_TRACE(grid.text());
    EXPECT_NEAR(train(grid, evaluates).validation, want.validation, 1e-9 * want.validation);
  }
}

/// Sums of the forward are fp32, rounded where they are.
TEST_F(UnetGrid, NarrowNumbersTrainAlongside) {
  const Sets narrow = {"train.precision=bf16", "train.steps=4"};
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}}) {
    SCOPED_TRACE(grid.text());
    const Trained got = train(grid, narrow);
    for (size_t step = 0; step < got.losses.size(); ++step)
      EXPECT_NEAR(got.losses[step], serial().losses[step], 0x1p-5 * serial().losses[step]) << step;
  }
}

TEST_F(UnetGrid, ResumingInAnotherMeshChangesNothing) {
  const std::vector<Grid> parts = {
      {1, 2}, {2, 2, 1, 2, 1, "zero1"}, {1, 1, 1, 4, 1, "zero3"}, {1, 2, 1, 1, 4}, {4, 2}, {}};
  const std::string run_dir = next_folder();
  Trained got;
  for (size_t part = 0; part < parts.size(); ++part) {
    const int64_t steps = part + 1 == parts.size() ? 20 : 3 * static_cast<int64_t>(part + 1);
    got = test::trained(
        run_of(parts[part], {fmt::format("train.steps={}", steps), "checkpoint.resume=auto"}),
        parts[part].ranks(), run_dir);
  }
  expect_equal(got, serial());
}

/// What programs, ledger, allocator and layout say of it.
using UnetGridReaders = UnetGrid;

/// What a step sums, an image at a time: numbers times bytes, over x and over y. Sums of the
/// forward are wide; of moments both are fp64.
struct Sums {
  int64_t over_x = 0, over_y = 0;
};
Sums sums_of(const UnetOptions& options, const Grid& grid, bool narrow) {
  const int64_t forward = narrow ? 4 : 8, backward = narrow ? 2 : 8;
  const int64_t time = 4 * options.channels.front();
  Sums sums;
  int64_t side = options.image;
  const auto moments = [](int64_t channels) { return 2 * 2 * unet_groups(channels) * 8; };
  const auto residual = [&](int64_t in, int64_t out, bool attends) {
    const int64_t pixels = side * side;
    sums.over_x += (out * pixels * forward + (in * pixels + time) * backward) / grid.y;
    sums.over_y += moments(in) + out * pixels * (forward + backward) / grid.x;
    if (in != out) sums.over_y += out * pixels * (forward + backward);
    if (attends) sums.over_y += moments(out) + 3 * out * pixels * forward + out * pixels * backward;
  };
  const auto attends = [&] { return side <= options.attention_from; };
  const auto resample = [&](int64_t channels) {
    sums.over_y += channels * side * side * (forward + backward);
  };
  const auto levels = std::ssize(options.channels);
  std::vector<int64_t> skips = {options.channels[0]};
  sums.over_y += time * backward;
  for (int64_t level = 0; level < levels; ++level) {
    const int64_t channels = options.channels[size_t(level)];
    for (int64_t i = 0; i < options.residual_blocks; ++i) {
      residual(skips.back(), channels, attends());
      skips.push_back(channels);
    }
    if (level + 1 == levels) break;
    side /= 2;
    resample(channels);
    skips.push_back(channels);
  }
  int64_t features = skips.back();
  residual(features, features, true);
  residual(features, features, false);
  for (int64_t level = levels - 1; level >= 0; --level) {
    for (int64_t i = 0; i <= options.residual_blocks; ++i) {
      residual(features + skips.back(), options.channels[size_t(level)], attends());
      features = options.channels[size_t(level)];
      skips.pop_back();
    }
    if (level == 0) break;
    side *= 2;
    resample(features);
  }
  sums.over_y += moments(features) + options.colors * side * side * forward;
  return sums;
}

/// Nothing else is sent over x and y but what all agree on: nothing between two convolutions of a
/// residual block but the sums themselves, and nothing between two blocks.
TEST_F(UnetGridReaders, BytesAreClosedFormsInAllReaders) {
  for (const auto& [grid, narrow] : std::vector<std::pair<Grid, bool>>{
           {{2, 1}, false}, {{1, 2}, false}, {{2, 2}, false}, {{2, 1}, true}, {{1, 2}, true}}) {
    SCOPED_TRACE(grid.text() + (narrow ? " bf16" : ""));
    const strait::Run run = run_of(
        grid,
        {"train.steps=2", narrow ? "train.precision=bf16" : "train.precision=fp64", test::kPairs});
    const Job job = make_job(run, grid.ranks());
    const Sums sums = sums_of(run.model.unet, grid, narrow);
    const int64_t images = run.train.global_batch_size;
    Bytes want;
    for (int64_t place = 0; place < grid.y; ++place)
      test::add_exchange(want, "all-reduce", 2 * sums.over_x * images, {grid.x, 1});
    for (int64_t place = 0; place < grid.x; ++place)
      test::add_exchange(want, "all-reduce", 2 * sums.over_y * images, {grid.y, grid.x});
    test::add_exchange(want, "all-reduce", 2 * test::kAgreedBytes, {grid.ranks(), 1}, true);
    std::erase_if(want, [](const auto& row) { return row.second == 0; });
    const train::Outcome outcome = test::train_small(run, grid.ranks(), next_folder());
    test::expect_bytes(job, outcome.traffic, 2, want);
  }
}

TEST_F(UnetGridReaders, MemoryIsWhatTheAllocatorSaw) {
  for (const Grid& grid : {Grid{1, 2}, Grid{2, 2}, Grid{1, 2, 1, 2, 1, "zero3"},
                           Grid{1, 2, 2, 1, 1, "zero3"}, Grid{1, 2, 1, 1, 2}, Grid{2, 2, 1, 1, 2}})
    for (const char* precision : {"fp64", "bf16"}) {
      SCOPED_TRACE(grid.text() + " " + precision);
      test::expect_predicted_memory(test::train_small(
          run_of(grid, {"train.steps=2", std::string("train.precision=") + precision}),
          grid.ranks(), next_folder()));
    }
}

/// Convolutions of residual blocks and what adds the step are boxes over x and y, all other
/// matrices are cut over y; but that which embeds the step's waves.
TEST_F(UnetGridReaders, MatricesAreBoxes) {
  const Job job = make_job(run_of({2, 2}), 4);
  const std::vector<UnitShape>& whole = job.design.shape.units;
  std::map<std::string, int64_t> elements;
  for (const UnitShape& unit : job.design.layout.local_shape().units)
    for (const ParameterShape& parameter : unit.parameters)
      elements[parameter.name] = parameter.elements();
  for (const UnitShape& unit : whole)
    for (const ParameterShape& parameter : unit.parameters) {
      if (parameter.dims.size() < 2) continue;
      const auto holds = [&](const char* text) {
        return parameter.name.find(text) != std::string::npos;
      };
      const bool box = holds("residual.conv") || holds("residual.time");
      const int64_t ranks = box ? 4 : holds("enter.time.0") ? 1 : 2;
      EXPECT_EQ(elements.at(parameter.name) * ranks, parameter.elements()) << parameter.name;
    }
}

}  // namespace
}  // namespace strait
