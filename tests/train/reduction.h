// The reduction of one unit's gradient as a step's program makes it, on thread ranks, alone.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strait/comm/threads/thread_world.h"
#include "strait/device/arithmetic.h"
#include "strait/execute/environment.h"
#include "strait/layout/layout.h"
#include "strait/runtime/interpreter.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/strategy/sharding/movement.h"
#include "strait/verify/verify.h"

namespace strait::test {

/// Nodes of equal size, as levels "node" and "world".
inline Cluster grid_cluster(int64_t nodes, int64_t ranks_per_node) {
  Cluster cluster;
  cluster.name = "grid";
  if (ranks_per_node > 1) cluster.levels.push_back({"node", ranks_per_node, 1e10, 1e-6, 1});
  cluster.levels.push_back({"world", nodes, 1e9, 5e-6, 1});
  cluster.ranks = nodes * ranks_per_node;
  return cluster;
}

struct ReductionCase {
  int64_t nodes = 1, ranks_per_node = 1, elements = 1;
  std::string codec = "int4/16";
  bool sharded = true;      // gradients over all ranks; else whole on every rank, summed across
  codec::Runs layers = {};  // of a compressed all-reduce
  std::vector<ParameterShape> parameters = {};  // whose matrices have factors
};

/// What one rank gave and got.
struct Reduced {
  Range range;                                // elements that it holds in the end
  std::vector<std::vector<float>> sums;       // [round], of these
  std::vector<std::vector<float>> residuals;  // [nth] of its residuals in the end, empty: none
  int64_t not_finite = 0;                     // elements
  Ledger traffic;                             // of all rounds
};

/// The gradient of a rank in a round, element by element.
using GradientOf = std::function<float(int64_t rank, int64_t round, int64_t element)>;

/// Elements that rank r of a split over a whole world owns: each node cuts a unit over its ranks,
/// then each of these shards is cut over the nodes.
inline Range owned_range(int64_t nodes, int64_t ranks_per_node, int64_t elements, int64_t rank) {
  const int64_t world = nodes * ranks_per_node;
  const int64_t grain = ((elements + world - 1) / world + 15) / 16 * 16;
  const int64_t part = rank % ranks_per_node * nodes + rank / ranks_per_node;
  return {std::min(elements, part * grain), std::min(elements, (part + 1) * grain)};
}

/// Makes a gradient up.
inline const program::Kernel kFill{
    "fill", program::Bound::kNothing, {{"gradient", program::kWrites}}, {}};

inline void add_reduction_executors(runtime::Executors& executors, const GradientOf& gradient,
                                    device::Arithmetic& arithmetic) {
  execute::add_coding_executors(executors, arithmetic);
  execute::add_low_rank_executors(executors);
  executors.add(kFill, runtime::Execute([&](const runtime::Instance& instance) {
                  float* out = static_cast<float*>(instance.writes[0].data);
                  for (int64_t i = 0; i < instance.writes[0].bytes / 4; ++i)
                    out[i] = gradient(instance.rank, instance.step, i);
                }));
}

/// The program; `change` may break it.
inline program::Program reduction_program(const ReductionCase& c,
                                          const strategy::Placement& placement,
                                          const Cluster& cluster) {
  draft::Draft draft{.mesh = Mesh({}, placement.ranks), .units = {0}};
  program::Program& program = draft.program;
  program.name = "reduction";
  program.ranks = placement.ranks;
  program.streams = {{"compute", 0}};
  program::ValueArray agreed;
  agreed.name = "agreed";
  agreed.dtype = Dtype::kFloat64;
  agreed.partition = {strategy::kNumAgreed, strategy::kNumAgreed};
  agreed.lifetime = program::Lifetime::kResident;
  program::ValueArray step = agreed;
  step.name = "step";
  step.partition = {strategy::kNumStepValues, strategy::kNumStepValues};
  step.tier = program::Tier::kHost;
  program.arrays = {agreed, step};
  ModelShape shape;
  shape.units.resize(1);
  shape.units[0].name = "unit";
  shape.units[0].elements = c.elements;
  shape.units[0].parameters = c.parameters;
  strategy::UnitValues values(draft, shape, placement, cluster, {});
  values.declare_gradients({});
  draft.agreement = values.world_group();
  const strategy::Movement movement(draft, values, placement, cluster,
                                    {{0, {}, program::Access::kAdd}, {1, {}}});
  program::Op fill;
  fill.kind = program::OpKind::kKernel;
  fill.kernel = &kFill;
  fill.writes = {program::as(movement.gradient(0), program::Access::kWrite)};
  program.body.push_back(fill);
  for (auto& stage : movement.reduce(0, false, strategy::ReducePhase::kLast))
    for (program::Node& node : stage) program.body.push_back(std::move(node));
  return std::move(program);
}

inline strategy::Placement reduction_placement(const ReductionCase& c) {
  strategy::Placement placement;
  placement.ranks = c.nodes * c.ranks_per_node;
  if (c.sharded) placement.weights = placement.gradients = placement.optimizer = placement.ranks;
  placement.set_hops({c.ranks_per_node, placement.ranks});
  for (codec::CodecSpec& spec : placement.codecs.gradients) spec = codec::parse_codec(c.codec);
  if (!c.layers.runs.empty()) placement.layers = {c.layers};
  return placement;
}

/// Runs `rounds` reductions; result by rank.
inline std::vector<Reduced> reduce_on_ranks(
    const ReductionCase& c, int64_t rounds, const GradientOf& gradient,
    const std::function<void(program::Program&)>& change = {}) {
  const Cluster cluster = grid_cluster(c.nodes, c.ranks_per_node);
  const strategy::Placement placement = reduction_placement(c);
  program::Program program = reduction_program(c, placement, cluster);
  program::verify_or_throw({program});
  if (change) change(program);
  std::vector<Reduced> results(static_cast<size_t>(placement.ranks));
  const auto worlds = comm::make_thread_worlds(placement.ranks, cluster, {});
  comm::run_ranks(*worlds, [&](comm::World& world) {
    memory::Pool pool;
    runtime::State state(pool, world.rank());
    const std::unique_ptr<device::Arithmetic> arithmetic = device::make_arithmetic(nullptr, 1);
    runtime::Executors executors;
    add_reduction_executors(executors, gradient, *arithmetic);
    runtime::Interpreter interpreter(program,
                                     {world, state, pool, executors, nullptr, 60.0, nullptr});
    Reduced& result = results[static_cast<size_t>(world.rank())];
    const auto values_of = [&](const program::ValueArray& array) {
      const runtime::ResidentArray& held = state.array(array.name);
      const float* data = static_cast<const float*>(held.buffers[0]);
      return std::vector<float>(data, data + held.bytes / 4);
    };
    for (int64_t round = 0; round < rounds; ++round) {
      std::array<double, strategy::kNumStepValues> step{};
      step[strategy::kUpdatesBefore] = static_cast<double>(round);
      state.write("step", step.data(), sizeof(step));
      interpreter.run(round);
      state.drain();
      for (const program::ValueArray& array : program.arrays) {
        if (array.name != "g.unit") continue;
        result.range.begin = program::value_begin(program, array, world.rank());
        result.sums.push_back(values_of(array));
        result.range.end = result.range.begin + static_cast<int64_t>(result.sums.back().size());
      }
    }
    interpreter.drain_ledger(result.traffic);
    for (const program::ValueArray& array : program.arrays)
      if (strategy::is_residual(array)) result.residuals.push_back(values_of(array));
    const auto agreed = state.read<double, strategy::kNumAgreed>("agreed");
    result.not_finite = static_cast<int64_t>(agreed[strategy::kNotFinite]);
  });
  return results;
}

}  // namespace strait::test
