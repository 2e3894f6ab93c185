// Placements on 1 to 4 nodes of 1 to 8 ranks (specs/sharding.md 2.b, invariants 3 to 5; 3.b, 7 and
// 9): which spans are legal, that shards nest and tile, and the bytes of every preset on every
// level.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "strait/base/errors.h"
#include "strait/codec/codec.h"
#include "strait/config/parse.h"
#include "strait/cost/cost.h"
#include "strait/program/transfer.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/compose.h"
#include "strait/strategy/sharding/unit_values.h"
#include "tests/strategy/sent.h"

namespace strait::strategy {
namespace {

using test::Bytes;
using test::int4;
using test::int8;
using test::Sent;
using test::up;

/// Ranks of a node come in pairs when `pair` > 1. Empty levels are left out.
struct Grid {
  int64_t nodes = 1, per_node = 1, pair = 1;
  int64_t ranks() const { return nodes * per_node; }
  bool has_levels() const { return nodes > 1 && per_node > 1; }
  /// Latencies so small that the exchange with the fewest bytes on outer levels is always the
  /// choice.
  Cluster cluster() const {
    Cluster cluster;
    cluster.name = "grid";
    if (pair > 1) cluster.levels.push_back({"pair", pair, 1e11, 1e-10, 1});
    if (per_node > 1) cluster.levels.push_back({"node", per_node / pair, 1e10, 1e-10, 1});
    cluster.levels.push_back({"world", nodes, 1e9, 1e-10, 1});
    cluster.ranks = ranks();
    cluster.flops_per_second_fp32 = cluster.flops_per_second_bf16 = 1e12;
    cluster.memory_bytes_per_second = 1e11;
    return cluster;
  }
  std::string text() const {
    return std::to_string(nodes) + " x " + std::to_string(per_node) + (pair > 1 ? " in pairs" : "");
  }
};

std::vector<Grid> all_grids() {
  std::vector<Grid> grids;
  for (int64_t nodes = 1; nodes <= 4; ++nodes) {
    for (int64_t per_node = 1; per_node <= 8; ++per_node) {
      grids.push_back({nodes, per_node, 1});
      if (nodes > 1 && per_node > 2 && per_node % 2 == 0) grids.push_back({nodes, per_node, 2});
    }
  }
  return grids;
}

Placement placement_of(const Grid& grid, std::vector<std::string> sets) {
  return resolve_placement(parse_run("", "test.toml", sets), grid.cluster(), grid.ranks());
}

std::string spans(int64_t weights, int64_t gradients, int64_t optimizer) {
  return "placement.spans={ weights = \"" + std::to_string(weights) + "\", gradients = \"" +
         std::to_string(gradients) + "\", optimizer = \"" + std::to_string(optimizer) +
         "\", secondary = \"none\" }";
}

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) all.push_back(d);
  return all;
}

/// Calls visit(weights, gradients, optimizer) for every triple of divisors of the ranks.
template <class Visit>
void for_each_triple(const Grid& grid, const Visit& visit) {
  const std::vector<int64_t> all = divisors(grid.ranks());
  for (const int64_t weights : all)
    for (const int64_t gradients : all)
      for (const int64_t optimizer : all) visit(weights, gradients, optimizer);
}

TEST(SpansOnGrids, ExactlyThoseThatNestAreLegal) {
  for (const Grid& grid : all_grids()) {
    int64_t legal = 0;
    for_each_triple(grid, [&](int64_t weights, int64_t gradients, int64_t optimizer) {
      const bool nested = gradients % weights == 0 && optimizer % gradients == 0;
      legal += nested;
      const std::string sets = spans(weights, gradients, optimizer);
      if (nested) {
        EXPECT_NO_THROW(placement_of(grid, {sets})) << grid.text() << " " << sets;
      } else {
        EXPECT_THROW(placement_of(grid, {sets}), UserError) << grid.text() << " " << sets;
      }
    });
    EXPECT_GT(legal, 0);
    EXPECT_THROW(placement_of(grid, {spans(1, 1, grid.ranks() + 1)}), UserError) << grid.text();
  }
}

/// Elements of an array of `program` on a rank: [begin, end).
std::pair<int64_t, int64_t> held(const program::Program& program, const std::string& name,
                                 int64_t rank) {
  for (const program::ValueArray& array : program.arrays) {
    if (array.name != name) continue;
    const int64_t begin = program::value_begin(program, array, rank);
    return {begin, begin + program::value_elements(program, array, rank)};
  }
  ADD_FAILURE() << "no array " << name;
  return {0, 0};
}

TEST(SpansOnGrids, ShardsNestAndTileTheUnitOncePerReplica) {
  for (const Grid& grid : all_grids()) {
    for_each_triple(grid, [&](int64_t weights, int64_t gradients, int64_t optimizer) {
      if (gradients % weights != 0 || optimizer % gradients != 0) return;
      // With a codec every level is a hop: the same spans, cut in another order.
      for (const char* codec : {"none", "int4/64"}) {
        const Placement placement =
            placement_of(grid, {spans(weights, gradients, optimizer),
                                std::string("placement.codecs.gradients=") + codec});
        for (const int64_t elements : {int64_t{1}, int64_t{777}, 48 * grid.ranks()}) {
          draft::Draft draft{.mesh = Mesh({}, grid.ranks()), .units = {0}};
          program::Program& program = draft.program;
          program.ranks = grid.ranks();
          ModelShape shape;
          shape.units.resize(1);
          shape.units[0].name = "unit";
          shape.units[0].elements = elements;
          UnitValues values(draft, shape, placement, grid.cluster(), {});
          draft::StepOptions options;
          options.optimizer = {{"m", "momentum"}};
          values.declare_gradients(options);
          std::map<std::string, int64_t> covered;
          for (int64_t rank = 0; rank < grid.ranks(); ++rank) {
            const auto w = held(program, "w.unit", rank), g = held(program, "g.unit", rank),
                       m = held(program, "m.unit", rank);
            EXPECT_TRUE(m.first == m.second || (g.first <= m.first && m.second <= g.second));
            EXPECT_TRUE(g.first == g.second || (w.first <= g.first && g.second <= w.second));
            covered["w"] += w.second - w.first;
            covered["g"] += g.second - g.first;
            covered["m"] += m.second - m.first;
          }
          EXPECT_EQ(covered["w"] * weights, elements * grid.ranks()) << grid.text();
          EXPECT_EQ(covered["g"] * gradients, elements * grid.ranks()) << grid.text();
          EXPECT_EQ(covered["m"] * optimizer, elements * grid.ranks()) << grid.text();
        }
      }
    });
  }
}

/// Level 0 is the pair, 1 the node, 2 the world.
Bytes bytes_of(const Ledger& ledger, const Grid& grid) {
  Bytes bytes;
  const int64_t left_out = 3 - static_cast<int64_t>(grid.cluster().levels.size());
  for (const Traffic& row : ledger.rows()) {
    // Where a level is left out: pair, then node.
    int64_t level = row.level + (grid.pair > 1 ? 0 : 1) + (grid.per_node > 1 ? 0 : 1);
    if (left_out == 0) level = row.level;
    bytes[{row.operation, level}] += {row.payload_bytes, row.metadata_bytes};
  }
  std::erase_if(bytes, [](const auto& row) { return row.second == Sent{}; });
  return bytes;
}

/// The tables of the specification, written out for one unit of `e` elements: each rank sends what
/// the others of its group lack.
class Table {
 public:
  Table(const Grid& grid, int64_t accumulation, int64_t elements, Bytes& bytes)
      : grid_(grid), accumulation_(accumulation), e_(elements), bytes_(bytes) {}

  /// Every unit is gathered twice per micro-step: blocks forward and backward, tied embedding and
  /// head.
  int64_t gathers() const { return 2 * accumulation_; }

  void zero_plus_plus() {
    const int64_t world = grid_.ranks(), d = grid_.pair, q = grid_.per_node / d, n = grid_.nodes;
    // qwZ: the first gather of a step, over the rail, then in the node, then in the pair.
    const Sent piece = int8(shard(world));
    add("all-gather", 2, piece.times(world * (n - 1)));
    add("all-gather", 1, piece.times(world * n * (q - 1)));
    add("all-gather", 0, piece.times(world * n * q * (d - 1)));
    // hpZ: all others inside the node, of fp32.
    add("all-gather", 1, Sent{(gathers() - 1) * n * (q - 1) * e_ * 4, 0});
    add("all-gather", 0, Sent{(gathers() - 1) * n * q * (d - 1) * e_ * 4, 0});
    // qgZ: every micro-step.
    reduce(0, d, d, accumulation_);
    reduce(1, q, d * q, accumulation_);
    reduce(2, n, world, accumulation_);
  }

  void zero_topo() {
    const int64_t world = grid_.ranks(), n = grid_.nodes;
    const int64_t d = grid_.pair > 1 ? grid_.pair : grid_.per_node, q = grid_.per_node / d;
    const int64_t inner = grid_.pair > 1 ? 0 : 1;
    const Sent piece = int8(shard(world));
    // Weights over the pair, the d-th part each: forward and backward of every micro-step.
    add("all-gather", inner, piece.times(gathers() * world * n * q * (d - 1)));
    // Gradients inside the node every micro-step, over the rail once.
    reduce(inner, d, d, accumulation_);
    reduce(1, q, d * q, accumulation_);
    reduce(2, n, world, 1);
    // Updated weights: over the rail, then to the same die of the node's pairs.
    add("all-gather", 2, piece.times(world * (n - 1)));
    add("all-gather", 1, piece.times(world * n * (q - 1)));
  }

  /// Presets without codecs: exchanges of fp32 among `group` neighbours, or among ranks `stride`
  /// apart.
  void exchange(const char* operation, int64_t times, int64_t group, int64_t stride) {
    const int64_t d = grid_.pair, in_node = grid_.per_node;
    const int64_t copies = grid_.ranks() / group / stride, v = times * copies * e_ * 4;
    const auto members = [&](int64_t span) {  // of a group inside `span` neighbours
      return std::clamp<int64_t>(span / stride, 1, group);
    };
    const int64_t pairs = group / members(d), nodes = group / members(in_node);
    add(operation, 0, Sent{v * (group - pairs), 0});
    add(operation, 1, Sent{v * (pairs - nodes), 0});
    add(operation, 2, Sent{v * (nodes - 1), 0});
  }
  void zero3() {
    exchange("all-gather", gathers(), grid_.ranks(), 1);
    exchange("reduce-scatter", accumulation_, grid_.ranks(), 1);
  }
  void zero2() {
    exchange("all-gather", 1, grid_.ranks(), 1);
    exchange("reduce-scatter", accumulation_, grid_.ranks(), 1);
  }
  void zero1() {
    exchange("all-gather", 1, grid_.ranks(), 1);
    exchange("reduce-scatter", 1, grid_.ranks(), 1);
  }
  void ddp() { exchange("all-reduce", 2, grid_.ranks(), 1); }
  void groups(int64_t group, int64_t times) {
    exchange("all-gather", gathers(), group, 1);
    exchange("reduce-scatter", accumulation_, group, 1);
    exchange("all-reduce", 2 * times, grid_.ranks() / group, group);
  }

 private:
  /// Longest shard of the unit over `span` ranks.
  int64_t shard(int64_t span) const {
    return up(up(e_, grid_.ranks()), 16) * 16 * (grid_.ranks() / span);
  }
  /// One hop among `size` ranks to shards of `span`: pieces for all but oneself.
  void reduce(int64_t level, int64_t size, int64_t span, int64_t times) {
    add("all-to-all", level, int4(shard(span)).times(times * grid_.ranks() * (size - 1)));
  }
  void add(const char* operation, int64_t level, const Sent& sent) {
    bytes_[{operation, level}] += sent;
  }
  const Grid& grid_;
  int64_t accumulation_, e_;
  Bytes& bytes_;
};

ModelShape model() {
  ShapeOptions options;
  options.layers = 2;
  options.heads = options.kv_heads = 2;
  options.width = 24;
  options.ffn_width = 96;
  options.context = 4;
  return gpt2_shape(options, 11);
}

Bytes table_of(const std::string& preset, const Grid& grid, int64_t accumulation,
               const Placement& placement) {
  Bytes bytes;
  for (const UnitShape& unit : model().units) {
    Table table(grid, accumulation, unit.elements, bytes);
    if (preset == "zero++") table.zero_plus_plus();
    if (preset == "zero-topo") table.zero_topo();
    if (preset == "zero3") table.zero3();
    if (preset == "zero2") table.zero2();
    if (preset == "zero1") table.zero1();
    if (preset == "ddp") table.ddp();
    if (preset == "hsdp") table.groups(placement.optimizer, accumulation);
    if (preset == "mics") table.groups(placement.optimizer, 1);
  }
  std::erase_if(bytes, [](const auto& row) { return row.second == Sent{}; });
  return bytes;
}

/// A step's program without the exchange of agreed scalars, which no table counts.
program::Program step_of(const Grid& grid, const Placement& placement, int64_t accumulation,
                         Dtype dtype) {
  StepOptions options;
  options.tokens = 4;
  options.accumulation = accumulation;
  options.dtype = dtype;
  options.optimizer = {{"m", "first_moment"}, {"v", "second_moment"}};
  program::Program program = compose(model(), placement, grid.cluster(), options);
  std::erase_if(program.body, [&](const program::Node& node) {
    const auto* op = std::get_if<program::Op>(&node);
    return op != nullptr && op->kind == program::OpKind::kAllReduce &&
           program.arrays[op->reads[0].array].name == "agreed";
  });
  return program;
}

TEST(BytesOnGrids, AreThoseOfTheTablesForEveryPreset) {
  for (const Grid& grid : all_grids()) {
    for (const PlacementRow& row : placement_table()) {
      const std::string preset = row.name;
      const std::vector<std::string> sets = {"placement.preset=" + preset};
      if (!is_applicable(row, grid.cluster(), grid.ranks())) {
        EXPECT_TRUE(preset == "zero++" || preset == "zero-topo") << preset;
        EXPECT_FALSE(grid.has_levels()) << grid.text();
        EXPECT_THROW(placement_of(grid, sets), UserError) << grid.text();
        continue;
      }
      const Placement placement = placement_of(grid, sets);
      for (const int64_t accumulation : {1, 2, 3}) {
        const program::Program program = step_of(grid, placement, accumulation, Dtype::kFloat32);
        const Bytes want = table_of(preset, grid, accumulation, placement);
        const std::string what =
            preset + " on " + grid.text() + ", accumulation " + std::to_string(accumulation);
        EXPECT_EQ(bytes_of(cost::price(program, grid.cluster()).traffic, grid), want) << what;
        if (accumulation == 2) continue;
        EXPECT_EQ(bytes_of(sim::simulate(program, grid.cluster()).traffic, grid), want) << what;
      }
    }
  }
}

// The runtime's ledger tells scales from the codec's name and the length of a piece in the buffers,
// the other readers from the operation.
TEST(BytesOnGrids, PiecesInTheBuffersHaveTheScalesOfTheOperations) {
  int64_t seen = 0;
  for (const Grid& grid : all_grids()) {
    for (const PlacementRow& row : placement_table()) {
      if (!is_applicable(row, grid.cluster(), grid.ranks())) continue;
      const Placement placement =
          placement_of(grid, {std::string("placement.preset=") + row.name, "train.precision=bf16"});
      const program::Program program = step_of(grid, placement, 2, Dtype::kBfloat16);
      program::for_each_op(program.body, [&](const program::Op& op) {
        if (!program::is_communication(op.kind) || op.piece_bytes == 0) return;
        const int64_t length = program::piece_length(program, op);
        EXPECT_EQ(length, op.piece_bytes) << program::print_op(program, op);
        EXPECT_EQ(codec::scale_bytes(codec::parse_codec(op.codec), length), op.metadata_bytes)
            << row.name << " on " << grid.text() << ": " << program::print_op(program, op);
        ++seen;
      });
    }
  }
  EXPECT_GT(seen, 1000);
}

/// Payload that leaves all nodes in a step.
int64_t boundary_bytes(const std::string& preset, const Grid& grid, int64_t accumulation) {
  const std::string bf16 = "train.precision=bf16";
  const Placement placement = placement_of(grid, {"placement.preset=" + preset, bf16});
  const program::Program program = step_of(grid, placement, accumulation, Dtype::kBfloat16);
  int64_t sum = 0;
  for (const Traffic& row : cost::price(program, grid.cluster()).traffic.rows())
    if (row.level + 1 == static_cast<int64_t>(grid.cluster().levels.size()))
      sum += row.payload_bytes;
  return sum;
}

// In units of M = 2 bytes per parameter, of which (n - 1) / n leave each of n nodes: 3 A M for
// ZeRO-3, 0.5 M + A 0.25 M for ZeRO++, 0.75 M for ZeRO-topo whatever A is.
TEST(BytesOnGrids, WhatCrossesTheNodesIsTheFormulaOfEachScheme) {
  for (const Grid& grid : all_grids()) {
    if (!grid.has_levels()) continue;
    const ModelShape shape = model();
    const int64_t m = 2 * shape.parameters();
    // Shards are rounded up to 16 elements, and pieces are sent whole.
    const int64_t padding = static_cast<int64_t>(shape.units.size()) * 16 * grid.ranks();
    const int64_t topo = boundary_bytes("zero-topo", grid, 1);
    for (const int64_t accumulation : {1, 2, 4}) {
      const auto near = [&](const char* preset, double factor) {
        const int64_t sent = boundary_bytes(preset, grid, accumulation);
        const double all = static_cast<double>(grid.nodes - 1);
        EXPECT_GE(static_cast<double>(sent), factor * static_cast<double>(m) * all)
            << preset << " on " << grid.text();
        EXPECT_LE(static_cast<double>(sent), factor * static_cast<double>(m + 2 * padding) * all)
            << preset << " on " << grid.text();
      };
      const double a = static_cast<double>(accumulation);
      near("zero3", 3 * a);
      near("zero++", 0.5 + a * 0.25);
      near("zero-topo", 0.75);
      EXPECT_EQ(boundary_bytes("zero-topo", grid, accumulation), topo) << grid.text();
    }
  }
}

}  // namespace
}  // namespace strait::strategy
