// What several ranks add up on behalf of all: every element of a gradient, every token and every
// loss is counted by exactly one rank.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "strait/codec/codec.h"
#include "strait/draft/block_kernels.h"
#include "strait/draft/draft.h"
#include "strait/execute/environment.h"
#include "strait/shape/ends.h"
#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/strategy/pipeline/kernels.h"
#include "tests/layout/split_models.h"

namespace strait::execute {
namespace {

using program::Access;
using program::Op;
using program::Program;
using runtime::Bound;
using runtime::Instance;

constexpr int64_t kTokens = 5;

Mesh mesh_of(int64_t x, int64_t y, int64_t data, int64_t stage) {
  MeshOptions options;
  options.axes = {x, y, 1, 1, data, stage};
  return Mesh(options, x * y * data * stage);
}

/// The first unit is held by all stages, the others by one each.
std::vector<int64_t> first_stages(const ModelShape& model, int64_t stages) {
  std::vector<int64_t> first;
  for (size_t unit = 0; unit < model.units.size(); ++unit)
    first.push_back(unit == 0 ? 0 : static_cast<int64_t>(unit) % stages);
  return first;
}

/// The executors of one rank and what they work with.
struct Rank {
  explicit Rank(const Layout& layout)
      : model(layout.local_shape(), Dtype::kFloat64),
        arithmetic(device::make_arithmetic(nullptr, 1)),
        environment{model, layout, settings(), *arithmetic} {
    add_step_executors(executors, environment, {});
    add_block_executors(executors, environment, [](int64_t, int64_t, BatchBuffer& batch) {
      batch.inputs.assign(kTokens, 1);
      batch.targets = {1, 2, kIgnoredTarget, 3, kIgnoredTarget};
      batch.sequences = {0};
    });
  }
  static model::Settings settings() {
    model::Settings settings;
    settings.dtype = Dtype::kFloat64;
    return settings;
  }
  double agreed(strategy::Agreed element) const { return values[static_cast<size_t>(element)]; }
  Bound agreed_operand(int slot, Access access) {
    return {slot, access, 1, 0, sizeof(values), values.data()};
  }
  void execute(Instance instance) const {
    const program::Loops none(program::kNumCounters, 0);
    instance.loops = &none;
    executors.make(*instance.program, *instance.op)(instance);
  }

  const model::Model model;
  const std::unique_ptr<device::Arithmetic> arithmetic;
  const Environment environment;
  runtime::Executors executors;
  std::array<double, strategy::kNumAgreed> values{};
};

/// A program whose one group is that of axis x or data.
Program program_of(const Mesh& mesh, const char* axis) {
  Program program;
  program.ranks = mesh.ranks();
  program.groups = {{axis, mesh.axis(axis).size, mesh.axis(axis).stride}};
  return program;
}

/// The squared norm of a gradient whose element i is i % 7, added up over the ranks of `mesh`.
double norm_over_ranks(const Layout& layout, const Mesh& mesh, int64_t unit) {
  Program program = program_of(mesh, "data");
  const int64_t data = mesh.axis("data").size;
  Op op = draft::kernel_op(strategy::kSquaredNormOf);
  op.attributes = {program::Index{unit}};
  op.group = 0;
  op.partition = split_unit(layout.local_elements(unit), data, data);
  program.arrays = {{"G", 1, Dtype::kFloat64, op.partition, 0}, {"agreed"}};
  double sum = 0;
  for (int64_t at = 0; at < mesh.ranks(); ++at) {
    Rank rank(layout);
    std::vector<double> gradient;
    for_each_run(layout.pieces(unit, at, layout.held(unit, at, {data})),
                 [&](int64_t begin, int64_t, int64_t size) {
                   for (int64_t i = begin; i < begin + size; ++i)
                     gradient.push_back(static_cast<double>(i % 7));
                 });
    Instance instance{&program, &op};
    instance.rank = at;
    instance.reads = {{strategy::kNormGradient, Access::kRead, 0, 0, 0, gradient.data()}};
    instance.writes = {rank.agreed_operand(strategy::kNormAgreed, Access::kAdd)};
    rank.execute(instance);
    sum += rank.agreed(strategy::kSquaredNorm);
  }
  return sum;
}

TEST(Counting, EveryElementOfAGradientIsCountedOnce) {
  const ModelShape model = split_model("gpt2");
  for (const auto& [x, data, stage] :
       {std::tuple{1, 1, 1}, {1, 3, 1}, {2, 1, 1}, {2, 2, 1}, {1, 2, 2}, {2, 3, 2}}) {
    const Mesh mesh = mesh_of(x, 1, data, stage);
    const Layout layout(model, mesh, first_stages(model, stage));
    for (size_t unit = 0; unit < model.units.size(); ++unit) {
      double want = 0;
      for (int64_t i = 0; i < model.units[unit].elements; ++i)
        want += static_cast<double>(i % 7 * (i % 7));
      EXPECT_EQ(norm_over_ranks(layout, mesh, static_cast<int64_t>(unit)), want)
          << model.units[unit].name << " x " << x << " data " << data << " stage " << stage;
    }
  }
}

/// Two data-parallel groups of ranks that share blocks.
struct Grid {
  Grid(int64_t x, int64_t y) : mesh(mesh_of(x, y, 2, 1)), members(x * y) {}
  const ModelShape model = model_shape(model_options(), 16);
  const Mesh mesh;
  const int64_t members;  // of a group; its first member counts
  const Layout layout{model, mesh};
  const Program program = program_of(mesh, "data");

  static ModelOptions model_options() {
    ModelOptions options;
    options.shape = split_options("gpt2");
    return options;
  }
};
const std::array<std::pair<int64_t, int64_t>, 4> kGrids = {{{1, 1}, {2, 1}, {1, 2}, {2, 2}}};

/// Tokens that rank `at` counts when it loads a batch.
double loaded(const Grid& grid, const Op& op, int64_t at) {
  Rank rank(grid.layout);
  std::array<double, strategy::kNumStepValues> step{};
  std::array<int32_t, 2 * kTokens> tokens{};
  int64_t sequence = -1;
  Instance instance{&grid.program, &op};
  instance.rank = at;
  instance.reads = {{draft::kStepValues, Access::kRead, 0, 0, sizeof(step), step.data()}};
  instance.writes = {{draft::kTokens, Access::kWrite, 0, 0, sizeof(tokens), tokens.data()},
                     {draft::kSequences, Access::kWrite, 0, 0, sizeof(sequence), &sequence},
                     rank.agreed_operand(draft::kAgreed, Access::kAdd)};
  rank.execute(instance);
  EXPECT_EQ(sequence, 0) << "the batch is loaded whoever counts";
  return rank.agreed(strategy::kLossCount);
}

TEST(Counting, TheFirstMemberOfAGroupCountsTheTokensOfItsBatch) {
  Op op = draft::kernel_op(draft::kLoad);
  op.attributes = {program::Index{}, int64_t{1}, kTokens, int64_t{1}};
  for (const auto& [x, y] : kGrids) {
    const Grid grid(x, y);
    for (int64_t rank = 0; rank < grid.mesh.ranks(); ++rank)
      EXPECT_EQ(loaded(grid, op, rank), rank % grid.members == 0 ? 3 : 0)
          << "x " << x << " y " << y << " rank " << rank;
  }
  op.attributes[draft::kCounted] = int64_t{0};
  EXPECT_EQ(loaded(Grid(2, 1), op, 0), 0) << "counted by others";
}

/// The loss that rank `at` adds where all logits of the group are 0: each of the five tokens costs
/// log(vocabulary).
double loss_of(const Grid& grid, int64_t at) {
  Rank rank(grid.layout);
  const ModelShape& model = grid.layout.local_shape();
  const int64_t head = static_cast<int64_t>(model.blocks.size()) - 1;
  Op op = draft::block_op(draft::end_kernel(EndStep::kLoss), head, {0, 1});
  op.attributes[draft::kBatch] = int64_t{1};
  op.attributes[draft::kLength] = kTokens;
  std::vector<double> parts;  // [x, tokens, 3]: maximum, sum of exponentials, target's logit
  for (int64_t i = 0; i < model.x * kTokens; ++i)
    parts.insert(parts.end(),
                 {0.0, static_cast<double>(model.vocabulary) / static_cast<double>(model.x), 0.0});
  std::array<int32_t, 2 * kTokens> tokens{};
  Instance instance{&grid.program, &op};
  instance.rank = at;
  instance.reads = {{draft::kTokens, Access::kRead, 0, 0, sizeof(tokens), tokens.data()},
                    {draft::end_slot(EndValue::kParts), Access::kRead, 0, 0, 0, parts.data()}};
  instance.writes = {rank.agreed_operand(draft::kAgreed, Access::kAdd)};
  rank.execute(instance);
  return rank.agreed(strategy::kLossSum);
}

TEST(Counting, TheFirstMemberOfAGroupCountsTheLossOfItsBatch) {
  const double want = static_cast<double>(kTokens) * std::log(16.0);
  for (const auto& [x, y] : kGrids) {
    if (x * y == 1) continue;  // a head in one piece
    const Grid grid(x, y);
    for (int64_t rank = 0; rank < grid.mesh.ranks(); ++rank)
      EXPECT_NEAR(loss_of(grid, rank), rank % grid.members == 0 ? want : 0.0, 1e-12)
          << "x " << x << " y " << y << " rank " << rank;
  }
}

/// NaN, an infinity, and a number beyond fp32.
TEST(Counting, NumbersThatACodecOfActivationsLosesAreCounted) {
  std::vector<double> numbers(70, 1.0);
  numbers[3] = std::nan("");
  numbers[40] = std::numeric_limits<double>::infinity();
  numbers[69] = 1e39;
  Program program;
  program.arrays = {{"x", 1, Dtype::kFloat64}, {"piece", 1, Dtype::kByte}, {"agreed"}};
  Op op = draft::kernel_op(strategy::kEncodeActivation);
  op.codec = "int8/64";
  std::vector<uint8_t> piece(static_cast<size_t>(
      codec::encoded_bytes(codec::parse_codec(op.codec), std::ssize(numbers), Dtype::kFloat64)));
  std::array<double, strategy::kNumAgreed> agreed{};
  Instance instance{&program, &op};
  instance.reads = {{strategy::kActivationFrom, Access::kRead, 0, 0,
                     static_cast<int64_t>(numbers.size() * sizeof(double)), numbers.data()}};
  instance.writes = {
      {strategy::kActivationTo, Access::kWrite, 1, 0, std::ssize(piece), piece.data()},
      {strategy::kActivationAgreed, Access::kAdd, 2, 0, sizeof(agreed), agreed.data()}};
  const auto arithmetic = device::make_arithmetic(nullptr, 1);
  runtime::Executors executors;
  add_coding_executors(executors, *arithmetic);
  executors.make(program, op)(instance);
  EXPECT_EQ(agreed[strategy::kNotFinite], 3);
}

}  // namespace
}  // namespace strait::execute
