#include "strait/strategy/compose/compose.h"

#include <charconv>

#include "strait/base/errors.h"
#include "strait/program/roll.h"
#include "strait/strategy/compose/chain.h"
#include "strait/strategy/sharding/movement.h"

namespace strait::strategy {
namespace {

using program::Category;
using program::Lifetime;
using program::Node;
using program::Op;
using program::OpKind;
using program::Program;
using program::Role;

constexpr int64_t kUpdatePasses = 2;  // every state and the weights are read and written

Program start(const char* kind, const Placement& placement, const StepOptions& options) {
  Program program;
  program.name = placement.preset;
  program.step_kind = kind;
  program.ranks = placement.ranks;
  program.streams = {{"compute", 0}};
  program.tokens = options.micro_batch_size * options.tokens * options.accumulation;
  const auto scalars = [&](const char* name, int64_t elements) {
    program::ValueArray array;
    array.name = name;
    array.dtype = Dtype::kFloat64;
    array.partition = {elements, elements};
    array.lifetime = Lifetime::kResident;
    program.arrays.push_back(std::move(array));
  };
  scalars("agreed", kNumAgreed);
  scalars("results", kNumResults);
  return program;
}

program::Operand scalar(const Program& program, const char* name) {
  return {find_array(program, name), {}, Role::kScalars};
}

void begin_step(Program& program) {
  Op op;
  op.kind = OpKind::kCustom;
  op.custom = "begin_step";
  op.writes = {scalar(program, "agreed")};
  program.body.push_back(std::move(op));
}

void append(Program& program, std::vector<Node> nodes, const char* variable) {
  for (Node& node : program::roll(std::move(nodes), program.num_loops, variable))
    program.body.push_back(std::move(node));
}

/// First micro-step, the equal ones in between as one Repeat, and the last. The second is not equal
/// where it ends the first one's reductions, which add to nothing.
void micro_steps(Program& program, Chain& chain, int64_t accumulation) {
  const int64_t last = accumulation - 1;
  const auto emit = [&](int64_t index) {
    const ReducePhase phase = index == last ? ReducePhase::kLast : ReducePhase::kInner;
    append(program, chain.train({{index, -1, 0}, index > 0, phase}), "i");
  };
  int64_t next = 0;
  if (next < last) emit(next++);
  if (next < last && chain.reduces()) emit(next++);
  if (next < last) {
    program::Repeat repeat;
    repeat.variable = "a";
    repeat.loop = program.num_loops++;
    repeat.first = next;
    repeat.count = last - next;
    repeat.body = program::roll(chain.train({{0, repeat.loop, 1}, true, ReducePhase::kInner}),
                                program.num_loops, "i");
    program.body.push_back(std::move(repeat));
  }
  emit(last);
}

/// Sums the agreed scalars over all ranks, behind all reductions.
void agree(Program& program, const UnitValues& values, const Movement& movement) {
  if (program.ranks == 1) return;
  Op op;
  op.kind = OpKind::kAllReduce;
  op.stream = movement.agreement_stream();
  op.group = values.world_group();
  op.reads = {scalar(program, "agreed")};
  op.writes = {scalar(program, "agreed")};
  program.body.push_back(std::move(op));
}

/// First block of every unit, in chain order.
std::vector<int64_t> first_blocks(const ModelShape& shape) {
  std::vector<int64_t> result(shape.units.size(), -1);
  for (size_t b = 0; b < shape.blocks.size(); ++b)
    if (result[shape.blocks[b].unit] < 0) result[shape.blocks[b].unit] = static_cast<int64_t>(b);
  return result;
}

Op unit_op(OpKind kind, int64_t block) {
  Op op;
  op.kind = kind;
  op.block = {block, -1, 0};
  return op;
}

/// Norm of the reduced gradients: rank r adds the part that it alone counts, so that the sum over ranks
/// is the whole norm under every placement. Then one all-reduce, and the clip factor.
void clip(Program& program, const ModelShape& shape, const UnitValues& values,
          const Movement& movement) {
  std::vector<Node> nodes;
  const std::vector<int64_t> blocks = first_blocks(shape);
  for (int64_t unit = static_cast<int64_t>(shape.units.size()) - 1; unit >= 0; --unit) {
    Op op = unit_op(OpKind::kSquaredNorm, blocks[unit]);
    op.group = values.inner_group();
    op.partition = values.partition(unit);
    op.reads = {values.operand(UnitValue::kGradient, unit, Role::kGradient)};
    op.writes = {scalar(program, "agreed")};
    op.accumulate = true;
    op.memory_bytes = static_cast<double>(shape.units[unit].elements) / program.ranks *
                      dtype_bytes(program.arrays[op.reads[0].array].dtype);
    nodes.push_back(std::move(op));
  }
  append(program, std::move(nodes), "i");
  agree(program, values, movement);
  Op op;
  op.kind = OpKind::kClipFactor;
  op.reads = {scalar(program, "agreed")};
  op.writes = {scalar(program, "results")};
  program.body.push_back(std::move(op));
}

void update(Program& program, const ModelShape& shape, const UnitValues& values,
            const Movement& movement) {
  std::vector<Node> nodes;
  const std::vector<int64_t> blocks = first_blocks(shape);
  for (int64_t unit = 0; unit < static_cast<int64_t>(shape.units.size()); ++unit) {
    Op op = unit_op(OpKind::kUpdate, blocks[unit]);
    op.group = values.inner_group();
    op.partition = values.partition(unit);
    op.reads = {values.operand(UnitValue::kGradient, unit, Role::kGradient),
                scalar(program, "results")};
    const UnitValue weights =
        values.has(UnitValue::kMaster) ? UnitValue::kMaster : UnitValue::kShard;
    op.writes = {values.operand(weights, unit, Role::kWeights)};
    for (int64_t moment = 0; moment < values.num_moments(); ++moment)
      op.writes.push_back(values.operand(UnitValue::kMoment, unit, Role::kState, moment));
    const double shard = static_cast<double>(values.partition(unit).count(0));
    op.memory_bytes = shard * dtype_bytes(program.arrays[op.reads[0].array].dtype) *
                      static_cast<double>(1 + kUpdatePasses * (1 + values.num_moments()));
    nodes.push_back(std::move(op));
    movement.publish(unit, blocks[unit], nodes);
  }
  append(program, std::move(nodes), "i");
}

}  // namespace

Recompute parse_recompute(const std::string& text) {
  if (text == "none") return {0};
  if (text == "block") return {1};
  int64_t every = 0;
  const std::string prefix = "every:";
  if (text.starts_with(prefix)) {
    const char* end = text.data() + text.size();
    const auto [stop, code] = std::from_chars(text.data() + prefix.size(), end, every);
    if (code == std::errc() && stop == end && every >= 1) return {every};
  }
  ErrorPlace place;
  place.key = "train.recompute";
  throw UserError("train.recompute = \"" + text + "\" is not none, block or every:K with K >= 1",
                  place);
}

Program compose_train(const ModelShape& shape, const Placement& placement, const Cluster& cluster,
                      const StepOptions& options) {
  Program program = start(options.weights_unchanged ? "unchanged" : "steady", placement, options);
  UnitValues values(program, shape, placement, cluster, types_of(options.dtype));
  values.declare_gathered(true);
  values.declare_gradients(options.optimizer);
  const Movement movement(program, values, placement, cluster, scalar(program, "agreed"));
  Chain chain(program, shape, movement, options, placement);
  begin_step(program);
  micro_steps(program, chain, options.accumulation);
  clip(program, shape, values, movement);
  update(program, shape, values, movement);
  return program;
}

Program compose_publish(const ModelShape& shape, const Placement& placement, const Cluster& cluster,
                        Dtype dtype) {
  StepOptions options;
  options.dtype = dtype;
  Program program = start("publish", placement, options);
  const UnitValues values(program, shape, placement, cluster, types_of(dtype));
  const Movement movement(program, values, placement, cluster, {});
  std::vector<Node> nodes;
  if (placement.has_master()) {
    const std::vector<int64_t> blocks = first_blocks(shape);
    for (size_t unit = 0; unit < shape.units.size(); ++unit)
      movement.publish(static_cast<int64_t>(unit), blocks[unit], nodes);
  }
  append(program, std::move(nodes), "i");
  return program;
}

Program compose_evaluation(const ModelShape& shape, const Placement& placement,
                           const Cluster& cluster, const StepOptions& options) {
  Program program =
      start(options.weights_unchanged ? "evaluation-unchanged" : "evaluation", placement, options);
  UnitValues values(program, shape, placement, cluster, types_of(options.dtype));
  values.declare_gathered(true);
  const Movement movement(program, values, placement, cluster, scalar(program, "agreed"));
  Chain chain(program, shape, movement, options, placement);
  begin_step(program);
  append(program, chain.evaluate(), "i");
  agree(program, values, movement);
  return program;
}

Program compose_generation(const ModelShape& shape, const Cluster& cluster,
                           const StepOptions& options, int64_t capacity) {
  Placement whole;
  whole.preset = "generation";
  Program program = start("generation", whole, options);
  const UnitValues values(program, shape, whole, cluster, types_of(options.dtype));
  const Movement movement(program, values, whole, cluster, scalar(program, "agreed"));
  const auto declare = [&](const std::string& name, int64_t count, Dtype dtype, int64_t elements,
                           Lifetime lifetime) {
    program::ValueArray array;
    array.name = name;
    array.count = count;
    array.dtype = dtype;
    array.partition = {elements, elements};
    array.lifetime = lifetime;
    array.category = Category::kActivations;
    program.arrays.push_back(std::move(array));
    return static_cast<int>(program.arrays.size()) - 1;
  };
  const int64_t batch = options.micro_batch_size;
  const int64_t last = static_cast<int64_t>(shape.blocks.size()) - 1;
  const int tokens = declare("prompt." + std::to_string(options.tokens), 1, Dtype::kInt32,
                             batch * options.tokens, Lifetime::kResident);
  const int logits =
      declare("logits", 1, options.dtype, batch * shape.vocabulary, Lifetime::kResident);
  const int x = declare("x", last, options.dtype, batch * options.tokens * shape.options.width,
                        Lifetime::kTransient);
  const int cache =
      declare("cache", shape.options.layers, Dtype::kByte,
              cache_bytes(shape, batch, capacity, options.dtype), Lifetime::kResident);
  std::vector<Node> nodes;
  for (int64_t b = 0; b <= last; ++b) {
    const BlockSizes sizes = block_sizes(shape, b, batch, options.tokens, options.dtype);
    Op op = unit_op(OpKind::kForwardCached, b);
    op.segment_end = static_cast<int>(shape.blocks[b].segments.size());
    op.reads = {{tokens, {}, Role::kTokens}, movement.weights(shape.blocks[b].unit)};
    if (b > 0) op.reads.push_back({x, {b - 1, -1, 0}, Role::kInput});
    op.writes = {b < last ? program::Operand{x, {b, -1, 0}, Role::kOutput}
                          : program::Operand{logits, {}, Role::kOutput}};
    if (shape.blocks[b].kind == BlockKind::kTransformer)
      op.writes.push_back({cache, {b - 1, -1, 0}, Role::kCache});
    op.flops = sizes.forward_flops;
    // Attention reaches back over the cache: scratch as for a whole sequence.
    op.workspace_bytes =
        block_sizes(shape, b, batch, capacity, options.dtype).forward_workspace_bytes;
    nodes.push_back(std::move(op));
    if (b > 0) {
      Op free;
      free.writes = {{x, {b - 1, -1, 0}, Role::kDestination}};
      nodes.push_back(std::move(free));
    }
  }
  append(program, std::move(nodes), "i");
  return program;
}

}  // namespace strait::strategy
