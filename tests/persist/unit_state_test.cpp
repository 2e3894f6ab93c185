// The state of ranks that split matrices over x and y, and units over stages: initial values, hash,
// saving and loading are those of one rank.
#include "strait/persist/unit_state.h"

#include <gtest/gtest.h>

#include <mutex>

#include "strait/checkpoint/session.h"
#include "strait/comm/threads/thread_world.h"
#include "strait/memory/pool.h"
#include "strait/persist/parameter_hash.h"
#include "strait/strategy/finish/kernels.h"
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

struct Axes {
  int64_t x = 1, y = 1, stage = 1;
  int64_t ranks() const { return x * y * stage; }
  Mesh mesh() const {
    MeshOptions options;
    options.axes = {x, y, 1, 1, 1, stage};
    return Mesh(options, ranks());
  }
};
/// More stages than units: one holds nothing.
constexpr Axes kIdle{1, 1, 6};

std::ostream& operator<<(std::ostream& out, const Axes& axes) {
  return out << axes.x << " x " << axes.y << ", " << axes.stage << " stages";
}

/// Unit 0 lies on the first and the last stage, as a tied one does; of the others each has one.
bool holds(int64_t stage, int64_t stages, int64_t unit) {
  if (unit == 0) return stage == 0 || stage == stages - 1;
  return stage == unit % stages;
}

void add_state(program::Program& step, program::Op& update, const char* state, int64_t unit,
               int64_t elements) {
  program::ValueArray array{
      std::string(state) + std::to_string(unit), 1, Dtype::kFloat64, {elements, elements}};
  array.lifetime = program::Lifetime::kResident;
  array.address = {state, unit};
  update.writes.push_back({static_cast<int>(step.arrays.size()), {}, program::Access::kUpdate});
  step.arrays.push_back(std::move(array));
}

/// What a step of one stage updates, and nothing else.
program::Program class_of(const Layout& layout, const Axes& axes, int64_t stage) {
  program::Program step;
  step.ranks = axes.ranks();
  const int64_t each = axes.x * axes.y;
  for (int64_t rank = 0; rank < each; ++rank) step.members.push_back(stage * each + rank);
  step.groups = {{"data", 1, each}};
  for (size_t at = 0; at < layout.local_shape().units.size(); ++at) {
    const auto unit = static_cast<int64_t>(at);
    if (!holds(stage, axes.stage, unit)) continue;
    program::Op update;
    update.kind = program::OpKind::kKernel;
    update.kernel = &strategy::kUpdate;
    update.group = 0;
    for (const char* state : {checkpoint::kMaster, "first_moment"})
      add_state(step, update, state, unit, layout.local_elements(unit));
    step.body.emplace_back(std::move(update));
  }
  return step;
}

class SplitState : public ::testing::TestWithParam<const char*> {
 protected:
  /// Runs body(state, site) on every rank of a mesh.
  template <class Body>
  void on_ranks(const Axes& axes, const Body& body) {
    std::vector<int64_t> first_stage = {0};
    for (size_t unit = 1; unit < model_.units.size(); ++unit)
      first_stage.push_back(static_cast<int64_t>(unit) % axes.stage);
    const Layout layout(model_, axes.mesh(), first_stage);
    program::ProgramSet set{{{"steady", {}}}, {}};
    std::vector<program::Program>& classes = set.kinds.front().classes;
    for (int64_t stage = 0; stage < axes.stage; ++stage)
      classes.push_back(class_of(layout, axes, stage));
    const auto worlds = comm::make_thread_worlds(axes.ranks(), cluster_of(axes.ranks()));
    comm::run_ranks(*worlds, [&](comm::World& world) {
      memory::Pool pool;
      runtime::State state(pool, world.rank());
      state.bind(program::class_of(classes, world.rank()));
      const runtime::Executors none;
      const runtime::Site site{world, state, pool, none};
      body(persist::UnitState(set, model_, layout, state), site);
    });
  }
  /// The hash that the ranks agree on.
  std::string hash_of(const persist::UnitState& units, const runtime::Site& site) {
    const std::string hash = persist::parameter_hash(units, model_, site);
    const std::lock_guard lock(mutex_);
    if (site.world.rank() == 0) hash_ = hash;
    return hash;
  }
  void save(const persist::UnitState& units, int64_t rank, int64_t ranks, int64_t step) {
    checkpoint::SessionOptions options;
    options.run_dir = folder_.path();
    options.token = "split" + std::to_string(step);
    options.rank = rank;
    options.ranks = ranks;
    checkpoint::SaveSession session(options);
    std::optional<checkpoint::SaveDescription> description;
    if (rank == 0) description.emplace().manifest = manifest(step, ranks);
    persist::HostImages images;
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
  for (const Axes& axes : {Axes{}, {2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {1, 1, 2}, {2, 1, 3}, kIdle}) {
    on_ranks(axes, [&](const persist::UnitState& units, const runtime::Site& site) {
      units.initialize(kSeed);
      EXPECT_EQ(hash_of(units, site).empty(), site.world.rank() != 0);
    });
    if (one.empty()) one = hash_;
    EXPECT_EQ(hash_, one) << axes;
  }
}

TEST_P(SplitState, CheckpointsGoFromAnySplitToAnyOther) {
  int64_t step = 0;
  for (const Axes& axes : {Axes{}, {2, 1, 1}, {2, 2, 1}, {2, 1, 2}, kIdle}) {
    ++step;
    on_ranks(axes, [&](const persist::UnitState& units, const runtime::Site& site) {
      units.initialize(kSeed + static_cast<uint64_t>(step));
      hash_of(units, site);
      save(units, site.world.rank(), axes.ranks(), step);
    });
    const std::string saved = hash_;
    const checkpoint::CheckpointReader reader(folder_.path());
    EXPECT_EQ(reader.manifest().step, step);
    EXPECT_EQ(stored_parameter_hash(reader), saved);
    for (const Axes& to : {Axes{}, {1, 2, 1}, {2, 2, 1}, {1, 2, 2}}) {
      on_ranks(to, [&](const persist::UnitState& units, const runtime::Site& site) {
        units.load(reader);
        hash_of(units, site);
      });
      EXPECT_EQ(hash_, saved) << axes << " into " << to;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SplitState, ::testing::Values("gpt2", "llama"));

}  // namespace
}  // namespace strait
