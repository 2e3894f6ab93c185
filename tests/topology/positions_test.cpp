// What data-parallel ranks see of a cluster, against counting rank by rank.
#include "strait/topology/positions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "strait/base/errors.h"

namespace strait {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Cluster cluster_of(const std::vector<int64_t>& sizes) {
  ClusterOptions options;
  int64_t ranks = 1;
  for (const int64_t size : sizes) {
    options.levels.push_back({"level" + std::to_string(options.levels.size()), size, 1.0, 1.0});
    ranks *= size;
  }
  return make_cluster(options, ranks);
}

Mesh mesh_of(int64_t x, int64_t stage, int64_t ranks) {
  MeshOptions options;
  options.axes.x = x;
  options.axes.stage = stage;
  return Mesh(options, ranks);
}

/// Pairs of data-parallel ranks, beside the first rank of x and in the first stage, that share a
/// group of `level`.
std::set<std::pair<int64_t, int64_t>> together(const Cluster& cluster, int64_t level, int64_t x,
                                               int64_t positions) {
  std::set<std::pair<int64_t, int64_t>> pairs;
  const int64_t group = cluster.group_size(level);
  for (int64_t a = 0; a < positions; ++a)
    for (int64_t b = 0; b < positions; ++b)
      if (a * x / group == b * x / group) pairs.insert({a, b});
  return pairs;
}

TEST(Positions, ShareGroupsOfALevelAsTheirRanksDo) {
  const Cluster cluster = cluster_of({4, 6, 8});
  for (const int64_t x : {1, 2, 4, 8, 12, 24, 48})
    for (const int64_t stage : {1, 2, 4}) {
      const Cluster positions = positions_of(cluster, mesh_of(x, stage, cluster.ranks));
      const int64_t count = cluster.ranks / x / stage;
      EXPECT_EQ(positions.ranks, count);
      for (size_t level = 0; level < positions.levels.size(); ++level) {
        const std::string& name = positions.levels[level].name;
        const int64_t of_cluster =
            std::ranges::find(cluster.levels, name, &Level::name) - cluster.levels.begin();
        EXPECT_EQ(together(positions, static_cast<int64_t>(level), 1, count),
                  together(cluster, of_cluster, x, count))
            << name << " x " << x << " stage " << stage;
      }
    }
}

TEST(Positions, LevelsThatAnAxisFillsAreDropped) {
  const auto names = [](int64_t x, int64_t stage) {
    return level_names(positions_of(cluster_of({2, 4, 2}), mesh_of(x, stage, 16)));
  };
  EXPECT_THAT(names(1, 1), ElementsAre("level0", "level1", "level2"));
  EXPECT_THAT(names(2, 1), ElementsAre("level1", "level2"));
  EXPECT_THAT(names(1, 2), ElementsAre("level0", "level1"));
  EXPECT_THAT(names(2, 2), ElementsAre("level1"));
  EXPECT_THAT(names(8, 2), ElementsAre("level2")) << "one data-parallel rank";
}

TEST(Positions, RanksAlongZAndSequenceAreDataParallelToo) {
  const Cluster cluster = cluster_of({2, 4, 2});
  for (int64_t MeshAxes::*axis : {&MeshAxes::z, &MeshAxes::sequence}) {
    MeshOptions options;
    options.axes.*axis = 4;
    EXPECT_THAT(level_names(positions_of(cluster, Mesh(options, cluster.ranks))),
                ElementsAre("level0", "level1", "level2"));
    options.axes.x = 2;
    EXPECT_THAT(level_names(positions_of(cluster, Mesh(options, cluster.ranks))),
                ElementsAre("level1", "level2"));
  }
}

TEST(Positions, WithoutOtherAxesTheClusterStaysAsItIs) {
  ClusterOptions frontier;
  frontier.preset = "frontier";
  EXPECT_THAT(level_names(positions_of(make_cluster(frontier, 2), Mesh({}, 2))),
              ElementsAre("pair", "node", "world"));
}

std::string error_of(const Cluster& cluster, const Mesh& mesh, const char* key) {
  try {
    positions_of(cluster, mesh);
  } catch (const UserError& error) {
    EXPECT_EQ(error.place().key, key);
    return error.what();
  }
  return "";
}

TEST(Positions, AnAxisThatEndsWithinAGroupIsRefused) {
  const Cluster cluster = cluster_of({4, 6});
  EXPECT_THAT(error_of(cluster, mesh_of(3, 1, 24), "mesh.axes.x"),
              HasSubstr("mesh.axes.x = 3 ends within a group of a level of cluster levels"));
  EXPECT_THAT(error_of(cluster, mesh_of(3, 1, 24), "mesh.axes.x"), HasSubstr("size is 2"));
  EXPECT_THAT(error_of(cluster, mesh_of(1, 4, 24), "mesh.axes.stage"), HasSubstr("size is 3"));
  EXPECT_THAT(error_of(cluster, mesh_of(2, 4, 24), "mesh.axes.stage"), HasSubstr("size is 3"));
  EXPECT_EQ(error_of(cluster, mesh_of(2, 3, 24), ""), "");
}

TEST(Positions, ReplicasThatEndWithinAGroupAreRefusedUnderTheirOwnKey) {
  const std::string error =
      error_of(cluster_of({4, 6}), Mesh({}, 24).with_replicas(4), "sync.replica");
  EXPECT_THAT(error, HasSubstr("sync.replica makes 4 replicas, which end within a group of a level "
                               "of cluster levels (fan-outs 4, 6 are left)"));
  EXPECT_THAT(error, HasSubstr("number of replicas is 3"));
}

}  // namespace
}  // namespace strait
