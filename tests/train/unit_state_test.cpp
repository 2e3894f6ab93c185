// The state of ranks that split matrices over x and y: initial values, hash, saving and loading are
// those of one rank.
#include "strait/train/unit_state.h"

#include <gtest/gtest.h>

#include <mutex>

#include "strait/checkpoint/session.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/memory/pool.h"
#include "strait/strategy/compose/compose.h"
#include "strait/train/parameter_hash.h"
#include "tests/layout/split_models.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

constexpr uint64_t kSeed = 5;

Cluster cluster_of(int64_t ranks) {
  Cluster cluster;
  cluster.name = "test";
  cluster.ranks = ranks;
  cluster.levels = {{"world", ranks, 1e9, 1e-6, 1}};
  return cluster;
}

/// The step of one data rank whose units are local ones; each of `ranks` ranks runs it.
program::Program step_of(const Layout& layout, int64_t ranks) {
  strategy::StepOptions options;
  options.tokens = 5;
  options.dtype = Dtype::kFloat64;
  options.optimizer = {{"m", "first_moment"}, {"v", "second_moment"}};
  program::Program step =
      strategy::compose(layout.local_shape(), strategy::whole_placement(), cluster_of(1), options);
  step.ranks = ranks;
  return step;
}

class SplitState : public ::testing::TestWithParam<const char*> {
 protected:
  /// Runs body(state, site) on every rank of a mesh of x by y.
  template <class Body>
  void on_ranks(int64_t x, int64_t y, const Body& body) {
    MeshOptions options;
    options.axes = {x, y, 1, 1, 1, 1};
    const Layout layout(model_, Mesh(options, x * y));
    const std::vector<program::Program> classes = {step_of(layout, x * y)};
    const auto worlds = comm::make_thread_worlds(x * y, cluster_of(x * y));
    comm::run_ranks(*worlds, [&](comm::World& world) {
      memory::Pool pool;
      runtime::State state(pool, world.rank());
      state.bind(classes.front());
      const runtime::Executors none;
      const runtime::Site site{world, state, pool, none};
      body(train::UnitState(classes, model_, layout, state), site);
    });
  }
  /// The hash that the ranks agree on.
  std::string hash_of(const train::UnitState& units, const runtime::Site& site) {
    const std::string hash = train::parameter_hash(units, model_, site);
    const std::lock_guard lock(mutex_);
    if (site.world.rank() == 0) hash_ = hash;
    return hash;
  }
  void save(const train::UnitState& units, int64_t rank, int64_t ranks, int64_t step) {
    checkpoint::SessionOptions options;
    options.run_dir = folder_.path();
    options.token = "split" + std::to_string(step);
    options.rank = rank;
    options.ranks = ranks;
    checkpoint::SaveSession session(options);
    std::optional<checkpoint::SaveDescription> description;
    if (rank == 0) description.emplace().manifest = manifest(step, ranks);
    train::HostImages images;
    session.save(step, units.shards(images), std::move(description));
  }
  checkpoint::Manifest manifest(int64_t step, int64_t ranks) const {
    checkpoint::Manifest manifest;
    manifest.step = step;
    manifest.ranks = ranks;
    manifest.units = checkpoint::unit_records(model_);
    return manifest;
  }

  const ModelShape model_ = split_model(GetParam());
  const test::TemporaryFolder folder_;
  std::mutex mutex_;
  std::string hash_;
};

TEST_P(SplitState, InitialWeightsHaveOneHash) {
  std::string one;
  for (const auto& [x, y] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    on_ranks(x, y, [&](const train::UnitState& units, const runtime::Site& site) {
      units.initialize(kSeed);
      EXPECT_EQ(hash_of(units, site).empty(), site.world.rank() != 0);
    });
    if (one.empty()) one = hash_;
    EXPECT_EQ(hash_, one) << x << " x " << y;
  }
}

TEST_P(SplitState, CheckpointsGoFromAnySplitToAnyOther) {
  int64_t step = 0;
  for (const auto& [x, y] : {std::pair{1, 1}, {2, 1}, {2, 2}}) {
    const int64_t ranks = x * y;
    ++step;
    on_ranks(x, y, [&](const train::UnitState& units, const runtime::Site& site) {
      units.initialize(kSeed + static_cast<uint64_t>(step));
      hash_of(units, site);
      save(units, site.world.rank(), ranks, step);
    });
    const std::string saved = hash_;
    const checkpoint::CheckpointReader reader(folder_.path());
    EXPECT_EQ(reader.manifest().step, step);
    EXPECT_EQ(stored_parameter_hash(reader), saved);
    for (const auto& [to_x, to_y] : {std::pair{1, 1}, {1, 2}, {2, 2}}) {
      on_ranks(to_x, to_y, [&](const train::UnitState& units, const runtime::Site& site) {
        units.load(reader);
        hash_of(units, site);
      });
      EXPECT_EQ(hash_, saved) << x << " x " << y << " into " << to_x << " x " << to_y;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SplitState, ::testing::Values("gpt2", "llama"));

}  // namespace
}  // namespace strait
