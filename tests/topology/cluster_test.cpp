// Levels and axes laid on ranks against plain counting, and what is refused.
#include "strait/topology/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/topology/mesh.h"
#include "strait/topology/nearest.h"

namespace strait {
namespace {

using testing::HasSubstr;

std::string error_of(const ClusterOptions& options, int64_t ranks) {
  try {
    make_cluster(options, ranks);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

ClusterOptions levels(std::vector<int64_t> sizes) {
  ClusterOptions options;
  for (size_t i = 0; i < sizes.size(); ++i)
    options.levels.push_back({std::string(1, static_cast<char>('a' + i)), sizes[i], 10.0, 1.0, 1});
  return options;
}

std::vector<int64_t> sizes_of(const Cluster& cluster) {
  std::vector<int64_t> sizes;
  for (const Level& level : cluster.levels) sizes.push_back(level.size);
  return sizes;
}

TEST(Cluster, LocalhostIsOneLevel) {
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    const Cluster cluster = make_cluster({}, ranks);
    ASSERT_EQ(cluster.levels.size(), 1u);
    EXPECT_EQ(cluster.levels[0].name, "world");
    EXPECT_EQ(cluster.levels[0].size, ranks);
    EXPECT_EQ(cluster.ranks, ranks);
    EXPECT_DOUBLE_EQ(cluster.levels[0].bytes_per_second, 10e9);
    EXPECT_DOUBLE_EQ(cluster.levels[0].latency_seconds, 5e-6);
    EXPECT_TRUE(cluster.shares_cores);
  }
}

TEST(Cluster, FrontierFillsGroupsFromTheInside) {
  ClusterOptions frontier;
  frontier.preset = "frontier";
  EXPECT_EQ(sizes_of(make_cluster(frontier, 384)), (std::vector<int64_t>{2, 4, 48}));
  EXPECT_EQ(sizes_of(make_cluster(frontier, 1)), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(sizes_of(make_cluster(frontier, 2)), (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(sizes_of(make_cluster(frontier, 6)), (std::vector<int64_t>{2, 3, 1}));
  EXPECT_THAT(error_of(frontier, 3), HasSubstr("nearest valid number of ranks is 2 or 4"));
  EXPECT_THAT(error_of(frontier, 20), HasSubstr("level node (8 ranks each)"));
  EXPECT_THAT(error_of(frontier, 20), HasSubstr("16 or 24"));
}

TEST(Cluster, TheRestMayStandAnywhere) {
  EXPECT_EQ(sizes_of(make_cluster(levels({0, 2}), 8)), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(sizes_of(make_cluster(levels({2, 0, 3}), 12)), (std::vector<int64_t>{2, 2, 3}));
  EXPECT_EQ(sizes_of(make_cluster(levels({2, 2}), 4)), (std::vector<int64_t>{2, 2}));
  EXPECT_THAT(error_of(levels({2, 2}), 8), HasSubstr("hold 4 ranks and the run has 8"));
  EXPECT_NE(error_of(levels({2, 0, 4}), 12), "");
}

/// Every preset and many rank counts: sizes multiply to the ranks, and level_between equals the
/// plain definition (walk outwards until the groups agree).
TEST(Cluster, LevelBetweenEqualsPlainSearch) {
  for (const std::string& name : cluster_preset_names()) {
    ClusterOptions options;
    options.preset = name;
    for (const int64_t ranks : {1, 2, 4, 8, 16, 32, 64}) {
      const Cluster cluster = make_cluster(options, ranks);
      int64_t product = 1;
      for (const Level& level : cluster.levels) product *= level.size;
      EXPECT_EQ(product, ranks) << name;
      EXPECT_EQ(cluster.group_size(static_cast<int64_t>(cluster.levels.size()) - 1), ranks);
      for (int64_t a = 0; a < ranks; ++a)
        for (int64_t b = 0; b < ranks; ++b) {
          if (a == b) continue;
          int64_t level = 0, group = cluster.levels[0].size;
          while (a / group != b / group) group *= cluster.levels[static_cast<size_t>(++level)].size;
          ASSERT_EQ(cluster.level_between(a, b), level) << name << " " << a << " " << b;
        }
    }
  }
}

TEST(Cluster, PresetsHaveEveryRate) {
  for (const std::string& name : cluster_preset_names()) {
    ClusterOptions options;
    options.preset = name;
    const Cluster cluster = make_cluster(options, 64);
    EXPECT_EQ(cluster.name, name);
    EXPECT_GT(cluster.flops_per_second_fp32, 0) << name;
    EXPECT_GT(cluster.flops_per_second_fp64, 0) << name;
    EXPECT_GT(cluster.flops_per_second_bf16, 0) << name;
    EXPECT_GT(cluster.memory_bytes_per_second, 0) << name;
    EXPECT_GT(cluster.memory_bytes, 0) << name;
    for (const Level& level : cluster.levels) {
      EXPECT_GT(level.bytes_per_second, 0);
      EXPECT_GT(level.latency_seconds, 0);
      EXPECT_GE(level.links, 1);
    }
  }
}

TEST(Cluster, RanksShareTheMemoryOfTheirMachine) {
  ClusterOptions options;
  const int64_t assumed = make_cluster(options, 4).memory_bytes;
  options.measured = MeasuredRates{.memory_bytes_per_machine = 24'000};
  EXPECT_EQ(make_cluster(options, 4).memory_bytes, 6'000);
  options.measured->ranks_per_machine = 2;  // of 4
  EXPECT_EQ(make_cluster(options, 4).memory_bytes, 12'000);
  options.levels = {{.name = "world", .gb_per_second = 1}};  // other machines
  EXPECT_EQ(make_cluster(options, 4).memory_bytes, assumed);
}

TEST(Cluster, RanksBeyondTheCoresTakeTurns) {
  ClusterOptions options;
  options.measured = MeasuredRates{.cores_per_machine = 2, .flops_per_second_fp32 = 100};
  for (const int64_t ranks : {1, 2, 8}) {
    const Cluster cluster = make_cluster(options, ranks);
    const double crowd = std::max(1.0, static_cast<double>(ranks) / 2);
    EXPECT_DOUBLE_EQ(cluster.flops_per_second_fp32, 100 / crowd);
    EXPECT_DOUBLE_EQ(cluster.alone_speed(), crowd);
    EXPECT_EQ(cluster.ranks_per_machine, crowd > 1 ? ranks : 0);
  }
  options.measured->ranks_per_machine = 4;  // of 8
  EXPECT_DOUBLE_EQ(make_cluster(options, 8).flops_per_second_fp32, 50);
  // Threads beyond a rank's part of the cores bring nothing.
  Cluster cluster = make_cluster(options, 8);
  EXPECT_DOUBLE_EQ(cluster.cores_of_rank(4), 0.5);
  cluster.cores_per_machine = 8;
  EXPECT_DOUBLE_EQ(cluster.cores_of_rank(1), 1);
  EXPECT_DOUBLE_EQ(cluster.cores_of_rank(4), 2);
}

TEST(Cluster, BadLevelsAreRefused) {
  ClusterOptions options;
  options.preset = "frontir";
  EXPECT_THAT(error_of(options, 2), HasSubstr("nearest is \"frontier\""));
  EXPECT_THAT(error_of({}, 0), HasSubstr("nearest valid number is 1"));
  const auto with = [](auto change) {
    ClusterOptions changed = levels({2, 0});
    change(changed.levels);
    return error_of(changed, 4);
  };
  EXPECT_THAT(with([](auto& l) { l[0].size = 0; }), HasSubstr("only one level"));
  EXPECT_THAT(with([](auto& l) { l[0].size = -2; }), HasSubstr("size = -2"));
  EXPECT_THAT(with([](auto& l) { l[0].name = "none"; }), HasSubstr("cannot name a level"));
  EXPECT_THAT(with([](auto& l) { l[0].name = "4"; }), HasSubstr("cannot name a level"));
  EXPECT_THAT(with([](auto& l) { l[0].name = ""; }), HasSubstr("cannot name a level"));
  EXPECT_THAT(with([](auto& l) { l[1].name = "a"; }), HasSubstr("two levels are named"));
  EXPECT_THAT(with([](auto& l) { l[1].gb_per_second = 0; }), HasSubstr("gb_per_second"));
  EXPECT_THAT(with([](auto& l) { l[1].latency_microseconds = -1; }),
              HasSubstr("latency_microseconds"));
  EXPECT_THAT(with([](auto& l) { l[1].links = 0; }), HasSubstr("links"));
  EXPECT_EQ(with([](auto&) {}), "");
}

TEST(Mesh, DataTakesTheRest) {
  const Mesh mesh({}, 6);
  EXPECT_EQ(mesh.axis("data").size, 6);
  EXPECT_EQ(mesh.data_ranks(), 6);
  EXPECT_EQ(mesh.group(3, "data"), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(mesh.group(3, "x"), (std::vector<int64_t>{3}));
}

TEST(Mesh, JsonNamesEveryAxis) {
  MeshOptions options;
  options.axes.x = 2;
  options.axes.stage = 3;
  const Json json = mesh_json(Mesh(options, 24));
  for (const std::string& name : mesh_axis_names()) {
    const int64_t size = name == "x" ? 2 : name == "stage" ? 3 : name == "data" ? 4 : 1;
    EXPECT_EQ(json.at(name).as_integer(), size) << name;
  }
  EXPECT_EQ(json.size(), mesh_axis_names().size());
}

TEST(Mesh, ReplicasCutTheAxisData) {
  MeshOptions options;
  options.axes.x = 2;
  const Mesh mesh = Mesh(options, 12).with_replicas(3);
  EXPECT_EQ(mesh.group(5, "data"), (std::vector<int64_t>{5, 7}));
  EXPECT_EQ(mesh.group(5, "replica"), (std::vector<int64_t>{1, 5, 9}));
  EXPECT_EQ(mesh.data_ranks(), 6);
  EXPECT_THROW(mesh.with_replicas(4), InternalError);
}

TEST(Mesh, GroupsAgreeWithCoordinates) {
  MeshOptions options;
  options.axes = {2, 1, 3, 1, 0, 2};
  const int64_t ranks = 24;
  const Mesh mesh(options, ranks);
  EXPECT_EQ(mesh.axis("data").size, 2);
  EXPECT_EQ(mesh.data_ranks(), 6);
  EXPECT_EQ(mesh.axis("z").stride, 2);
  for (const MeshAxis& axis : mesh.axes())
    for (int64_t rank = 0; rank < ranks; ++rank) {
      // Plain reference: all ranks whose other coordinates are equal, in rank order.
      std::vector<int64_t> expected;
      for (int64_t other = 0; other < ranks; ++other) {
        bool same = true;
        for (const MeshAxis& fixed : mesh.axes())
          if (fixed.name != axis.name)
            same = same && mesh.coordinate(rank, fixed.name) == mesh.coordinate(other, fixed.name);
        if (same) expected.push_back(other);
      }
      EXPECT_EQ(mesh.group(rank, axis.name), expected);
    }
}

TEST(Mesh, BadSizesAreRefused) {
  const auto error = [](MeshAxes axes, int64_t ranks) -> std::string {
    MeshOptions options;
    options.axes = axes;
    try {
      Mesh(options, ranks);
    } catch (const UserError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_THAT(error({1, 1, 1, 1, 3, 1}, 4), HasSubstr("hold 3 ranks and the run has 4"));
  EXPECT_THAT(error({1, 1, 1, 1, 0, 3}, 4), HasSubstr("hold 3 ranks"));
  EXPECT_THAT(error({0, 1, 1, 1, 0, 1}, 4), HasSubstr("already takes the rest"));
  EXPECT_THAT(error({-1, 1, 1, 1, 0, 1}, 4), HasSubstr("mesh.axes.x = -1"));
  EXPECT_THAT(error({8, 1, 1, 1, 0, 1}, 4), HasSubstr("does not fit"));
  EXPECT_THAT(error({INT64_MAX, INT64_MAX, 1, 1, 0, 1}, 4), HasSubstr("does not fit"));
  MeshOptions options;
  options.order = {"x", "y", "z", "sequence", "data", "data"};
  EXPECT_THROW(Mesh(options, 2), UserError);
  EXPECT_THROW(Mesh({}, 2).axis("dta"), UserError);
}

TEST(Nearest, EqualsPlainSearch) {
  for (int64_t of = 1; of <= 60; ++of)
    for (int64_t near = 0; near <= 70; ++near) {
      int64_t best = 1;
      for (int64_t d = 1; d <= of; ++d)
        if (of % d == 0 && std::abs(d - near) < std::abs(best - near)) best = d;
      EXPECT_EQ(nearest_divisor(of, near), best) << of << " " << near;
    }
  EXPECT_EQ(nearest_multiples(12, 8), "8 or 16");
  EXPECT_EQ(nearest_multiples(3, 8), "8");
}

TEST(Cluster, SaysWhereItsFiguresAreFrom) {
  EXPECT_EQ(source_text(make_cluster({}, 2)), "preset localhost");
  EXPECT_EQ(prediction_note(make_cluster({.preset = "frontier"}, 8)), " by preset frontier");
  ClusterOptions own = levels({0});
  EXPECT_EQ(source_text(make_cluster(own, 2)),
            "rates of preset localhost, links of cluster.levels");
  own.measured = MeasuredRates{};
  EXPECT_EQ(source_text(make_cluster(own, 2)),
            "rates measured on this machine, links of cluster.levels");
  EXPECT_EQ(prediction_note(make_cluster(own, 2)), "");
}

TEST(Cluster, PeakRatesOfDataSheetsAreSaidToBeThose) {
  EXPECT_EQ(figures_text(make_cluster({}, 2)), "preset localhost");
  EXPECT_THAT(figures_text(make_cluster({.preset = "frontier"}, 8)),
              HasSubstr("preset frontier: peak rates of data sheets"));
  const ClusterOptions half{.preset = "frontier", .compute_share = 0.5};
  const Cluster cluster = make_cluster(half, 8);
  EXPECT_EQ(figures_text(cluster), "preset frontier, 0.5 of its peak rates");
  EXPECT_EQ(source_text(cluster), "preset frontier");
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
    EXPECT_EQ(cluster.flops_per_second(dtype),
              make_cluster({.preset = "frontier"}, 8).flops_per_second(dtype));
    EXPECT_EQ(cluster.model_flops_per_second(dtype), 0.5 * cluster.flops_per_second(dtype));
    EXPECT_EQ(cluster.attention_flops_per_second(dtype), 0.5 * cluster.flops_per_second(dtype));
  }
}

TEST(Cluster, MeasuredRatesReplaceThoseOfLocalhostAlone) {
  MeasuredRates measured;
  measured.flops_per_second_fp32 = 3e9;
  measured.attention_flops_per_second_fp32 = 2e9;
  const Cluster local = make_cluster({.measured = measured}, 2);
  EXPECT_EQ(local.flops_per_second(Dtype::kFloat32), 3e9);
  EXPECT_EQ(local.attention_flops_per_second(Dtype::kFloat32), 2e9);
  EXPECT_EQ(local.attention_flops_per_second(Dtype::kBfloat16),
            local.model_flops_per_second(Dtype::kBfloat16));
  EXPECT_EQ(local.flops_per_second(Dtype::kFloat64),
            make_cluster({}, 2).flops_per_second(Dtype::kFloat64));
  const Cluster far = make_cluster({.preset = "frontier", .measured = measured}, 8);
  EXPECT_NE(far.flops_per_second(Dtype::kFloat32), 3e9);
  EXPECT_EQ(source_text(far), "preset frontier");
}

}  // namespace
}  // namespace strait
