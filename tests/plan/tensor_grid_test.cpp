// AxoNN's communication model against golden vectors (specs: tensor4d 5.b), and its exact shapes
// against what composed programs move.
#include "strait/plan/tensor_grid.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "strait/base/errors.h"
#include "strait/config/parse.h"
#include "strait/strategy/compose/design.h"

namespace strait::plan {
namespace {

ShapeOptions gpt(int64_t layers, int64_t width, int64_t heads) {
  ShapeOptions shape;
  shape.layers = layers;
  shape.width = width;
  shape.heads = shape.kv_heads = heads;
  shape.ffn_width = 4 * width;
  return shape;
}

GridStep published_step() {
  return {
      .batch = 8192, .tokens = 2048, .down = DownProduct::kAsPublished, .innermost = Innermost::kY};
}

struct Golden {
  Grid grid;
  double published, exact;
};

void expect_golden(const ShapeOptions& shape, const char* machine,
                   const std::vector<Golden>& vectors) {
  const RingRate rate = published_ring_rate(machine);
  for (const Golden& golden : vectors) {
    GridStep step = published_step();
    EXPECT_NEAR(grid_seconds(shape, golden.grid, step, rate), golden.published,
                1e-12 * golden.published);
    step.down = DownProduct::kExact;
    EXPECT_NEAR(grid_seconds(shape, golden.grid, step, rate), golden.exact, 1e-12 * golden.exact);
  }
}

TEST(TensorGridModel, GivesTheGoldenVectors) {
  expect_golden(gpt(42, 12288, 96), "perlmutter",
                {{{1, 1, 1024, 1}, 5.310433959960937, 5.310433959960937},
                 {{1, 1, 512, 2}, 5.332928466796876, 5.332928466796876},
                 {{1, 1, 256, 4}, 5.377917480468749, 5.377917480468749},
                 {{4, 1, 64, 4}, 10.355625, 7.835625},
                 {{1, 4, 64, 4}, 12.035625, 13.295625},
                 {{2, 2, 64, 4}, 16.920888157894737, 15.677467105263156}});
  expect_golden(gpt(38, 9216, 72), "frontier",
                {{{1, 1, 4096, 1}, 5.409225940704346, 5.409225940704346},
                 {{1, 1, 2048, 2}, 5.421994972229003, 5.421994972229003},
                 {{1, 1, 1024, 4}, 5.447533035278321, 5.447533035278321}});
}

TEST(TensorGridModel, RanksGridsAsThePublishedScript) {
  const auto first = [](const ShapeOptions& shape, int64_t ranks, int64_t least,
                        const char* machine) {
    std::vector<Grid> grids;
    for (const RankedGrid& ranked :
         rank_grids(shape, ranks, least, published_step(), published_ring_rate(machine)))
      grids.push_back(ranked.grid);
    EXPECT_GE(grids.size(), 20U);
    grids.resize(3);
    return grids;
  };
  EXPECT_EQ(first(gpt(42, 12288, 96), 1024, 64, "perlmutter"),
            (std::vector<Grid>{{1, 1, 1024, 1}, {1, 1, 512, 2}, {1, 1, 256, 4}}));
  EXPECT_EQ(first(gpt(38, 9216, 72), 4096, 32, "frontier"),
            (std::vector<Grid>{{1, 1, 4096, 1}, {1, 1, 2048, 2}, {1, 1, 1024, 4}}));
}

TEST(TensorGridModel, OneRankSendsNothingAndBytesFallWithTheGrid) {
  const ShapeOptions shape = gpt(2, 64, 8);
  const GridStep step{.batch = 64, .tokens = 32};
  const GridBytes none = grid_bytes(shape, {}, step);
  EXPECT_EQ(none.x + none.y + none.z + none.data, 0);
  // Four products, 12 h^2 of weights: an all-gather twice and a reduce-scatter.
  EXPECT_DOUBLE_EQ(grid_bytes(shape, {1, 1, 4, 1}, step).z, 2 * 3 * 0.75 * 12 * 64 * 64 * 2);
  EXPECT_DOUBLE_EQ(grid_bytes(shape, {1, 1, 1, 4}, step).data, 2 * 2 * 0.75 * 12 * 64 * 64 * 4);
}

/// Sums of activations of the blocks, of the first step of a composed program: what one rank sends
/// in a ring, 2 (n - 1) / n of the vector.
GridBytes composed_bytes(const Run& run, int64_t ranks) {
  const strategy::Design design = strategy::make_design(run, ranks, 64);
  const program::Program& step = design.steady().front();
  GridBytes bytes;
  program::Loops loops;
  const auto add = [&](const program::Op& op, const program::Loops&) {
    if (op.kind != program::OpKind::kAllReduce || op.reads.empty()) return;
    const program::ValueArray& array = step.arrays[static_cast<size_t>(op.reads[0].array)];
    const program::Group& group = step.groups[static_cast<size_t>(op.group)];
    static const std::set<std::string> kSums = {"output_sum",
                                                "down_sum",
                                                "qkv_sum",
                                                "up_sum",
                                                "activated_gradient",
                                                "attention_gradient",
                                                "normed_mlp_gradient",
                                                "normed_attention_gradient"};
    if (!kSums.contains(array.name)) return;
    const double size = static_cast<double>(group.size);
    const double sent =
        2 * (size - 1) / size * static_cast<double>(program::value_bytes(step, array, 0));
    (group.name == "x" ? bytes.x : bytes.y) += sent;
  };
  program::for_each_instance(step, loops, {}, add);
  return bytes;
}

TEST(TensorGridModel, ExactShapesAreThoseOfComposedPrograms) {
  for (const Grid& grid : {Grid{2, 1}, Grid{1, 2}, Grid{2, 2}, Grid{4, 2}, Grid{2, 4}})
    for (const auto& [recomputes, precision, bytes, sums] :
         {std::tuple(false, "fp64", 8, 8), std::tuple(true, "fp64", 8, 8),
          std::tuple(false, "bf16", 2, 4), std::tuple(true, "bf16", 2, 4)}) {
      const strait::Run run = parse_run(
          "[model]\npreset = \"nano-char\"\nshape = { layers = 3, heads = 8, width = 32, ffn_width "
          "= 96, context = 16, vocabulary = 64 }\n[train]\nprecision = \"" +
              std::string(precision) +
              "\"\nglobal_batch_size = 4\nmicro_batch_size = 2\nrecompute = \"" +
              std::string(recomputes ? "block" : "none") + "\"\n[placement]\npreset = \"ddp\"\n" +
              "[mesh]\naxes = { x = " + std::to_string(grid.x) + ", y = " + std::to_string(grid.y) +
              " }\n[tensor]\ntiles = \"off\"\n",
          "grid.toml");
      const GridBytes got = composed_bytes(run, grid.ranks());
      const GridStep step{.batch = 4,
                          .tokens = 16,
                          .recomputes = recomputes,
                          .number_bytes = bytes,
                          .sum_bytes = sums};
      const GridBytes want = grid_bytes(run.model.shape, grid, step);
      // The last sum of a block is not made again: nobody reads it.
      const double last = recomputes && grid.x > 1 ? 2.0 * static_cast<double>(grid.x - 1) /
                                                         static_cast<double>(grid.x) * 3 * 4 * 16 *
                                                         32 * sums / static_cast<double>(grid.y)
                                                   : 0;
      EXPECT_DOUBLE_EQ(got.x, want.x - last) << grid.x << " x " << grid.y;
      EXPECT_DOUBLE_EQ(got.y, want.y) << grid.x << " x " << grid.y;
    }
}

TEST(TensorGridModel, TheInnermostAxisHasNeighbours) {
  const ShapeOptions shape = gpt(2, 64, 8);
  const RingRate rate = [](int64_t stride, int64_t) { return stride == 1 ? 1e9 : 1e6; };
  GridStep step{.batch = 64, .tokens = 32};
  const Grid grid{2, 4, 1, 1};
  const GridBytes bytes = grid_bytes(shape, grid, step);
  EXPECT_DOUBLE_EQ(grid_seconds(shape, grid, step, rate), bytes.x / 1e9 + bytes.y / 1e6);
  step.innermost = Innermost::kY;
  EXPECT_DOUBLE_EQ(grid_seconds(shape, grid, step, rate), bytes.y / 1e9 + bytes.x / 1e6);
}

TEST(TensorGridModel, RatesFollowTheLevels) {
  ClusterOptions options;
  options.preset = "perlmutter";
  const Cluster cluster = make_cluster(options, 16);
  const RingRate rate = ring_rate(cluster);
  const Level &node = cluster.levels[0], &world = cluster.levels[1];
  EXPECT_EQ(rate(1, 4), node.bytes_per_second * static_cast<double>(node.links));
  const double out = world.bytes_per_second * static_cast<double>(world.links);
  EXPECT_EQ(rate(1, 16), out);
  EXPECT_EQ(rate(2, 8), out / 2);
  EXPECT_EQ(rate(4, 4), out / 4);
  EXPECT_THROW(published_ring_rate("perlmuter"), UserError);
}

}  // namespace
}  // namespace strait::plan
