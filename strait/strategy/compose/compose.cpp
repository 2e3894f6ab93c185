#include "strait/strategy/compose/compose.h"

#include <charconv>

#include "strait/base/errors.h"
#include "strait/draft/block_kernels.h"
#include "strait/program/roll.h"
#include "strait/strategy/compose/chain.h"
#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/finish/step_values.h"
#include "strait/strategy/sharding/movement.h"

namespace strait::strategy {
namespace {

using program::Access;
using program::Category;
using program::Lifetime;
using program::Node;
using program::Op;
using program::OpKind;
using program::Program;

Program start(const char* kind, const Placement& placement, const StepOptions& options) {
  Program program;
  program.name = placement.preset;
  program.step_kind = kind;
  program.ranks = placement.ranks;
  program.streams = {{"compute", 0}};
  program.tokens = options.micro_batch_size * options.tokens * options.accumulation;
  const auto scalars = [&](const char* name, int64_t elements, program::Tier tier) {
    program::ValueArray array;
    array.name = name;
    array.dtype = Dtype::kFloat64;
    array.partition = {elements, elements};
    array.lifetime = Lifetime::kResident;
    array.tier = tier;
    program.arrays.push_back(std::move(array));
  };
  scalars("agreed", kNumAgreed, program::Tier::kDevice);
  scalars("results", kNumResults, program::Tier::kHost);
  scalars("step", kNumStepValues, program::Tier::kHost);
  scalars("progress", kNumProgress, program::Tier::kHost);
  program.arrays.back().address.state = "progress";
  return program;
}

/// An operand on one of the scalars.
program::Operand scalar(const Program& program, const char* name, Access access, int slot) {
  return {find_array(program, name), {}, access, slot};
}

Op kernel_op(const program::Kernel& kernel) {
  Op op;
  op.kind = OpKind::kKernel;
  op.kernel = &kernel;
  return op;
}

void begin_step(Program& program) {
  Op op = kernel_op(kBeginStep);
  op.reads = {scalar(program, "progress", Access::kRead, kBeginProgress)};
  op.writes = {scalar(program, "step", Access::kWrite, kBeginStepValues),
               scalar(program, "agreed", Access::kWrite, kBeginAgreed)};
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
  op.reads = {scalar(program, "agreed", Access::kRead, 0)};
  op.writes = {scalar(program, "agreed", Access::kWrite, 0)};
  program.body.push_back(std::move(op));
}

/// An op on the optimizer's shard of a unit.
Op shard_op(const program::Kernel& kernel, const UnitValues& values, int64_t unit) {
  Op op = kernel_op(kernel);
  op.attributes = {program::Index{unit}};
  op.group = values.inner_group();
  op.partition = values.partition(unit);
  op.reads = {values.operand(UnitValue::kGradient, unit)};
  return op;
}

/// Norm of the reduced gradients: rank r adds the part that it alone counts, so that the sum over ranks
/// is the whole norm under every placement. Then one all-reduce, and the clip factor.
void clip(Program& program, const ModelShape& shape, const UnitValues& values,
          const Movement& movement) {
  std::vector<Node> nodes;
  for (int64_t unit = static_cast<int64_t>(shape.units.size()) - 1; unit >= 0; --unit) {
    Op op = shard_op(kSquaredNormOf, values, unit);
    op.writes = {scalar(program, "agreed", Access::kAdd, kNormAgreed)};
    nodes.push_back(std::move(op));
  }
  append(program, std::move(nodes), "i");
  agree(program, values, movement);
  Op op = kernel_op(kClipFactor);
  op.reads = {scalar(program, "agreed", Access::kRead, kClipAgreed),
              scalar(program, "step", Access::kRead, kClipStep)};
  op.writes = {scalar(program, "results", Access::kWrite, kClipResults)};
  program.body.push_back(std::move(op));
}

void update(Program& program, const ModelShape& shape, const UnitValues& values,
            const Movement& movement) {
  const UnitValue weights = values.has(UnitValue::kMaster) ? UnitValue::kMaster : UnitValue::kShard;
  std::vector<Node> nodes;
  for (int64_t unit = 0; unit < static_cast<int64_t>(shape.units.size()); ++unit) {
    Op op = shard_op(kUpdate, values, unit);
    op.reads.push_back(scalar(program, "step", Access::kRead, kUpdateStep));
    op.reads.push_back(scalar(program, "results", Access::kRead, kUpdateResults));
    const auto updates = [&](UnitValue value, int slot, int64_t nth = 0) {
      op.writes.push_back(program::as(values.operand(value, unit, nth), Access::kUpdate, slot));
    };
    updates(weights, kUpdateWeights);
    for (int64_t moment = 0; moment < values.num_moments(); ++moment)
      updates(UnitValue::kMoment, kUpdateMoments, moment);
    nodes.push_back(std::move(op));
    movement.publish(unit, nodes);
  }
  append(program, std::move(nodes), "i");
}

/// What the next step starts from, and residuals that start anew with it.
void finish_step(Program& program, const ModelShape& shape, const UnitValues& values) {
  Op op = kernel_op(kFinishStep);
  op.reads = {scalar(program, "results", Access::kRead, kFinishResults),
              scalar(program, "step", Access::kRead, kFinishStepValues)};
  op.writes = {scalar(program, "progress", Access::kUpdate, kFinishProgress)};
  program.body.push_back(std::move(op));
  std::vector<Node> nodes;
  for (int64_t nth = 0; nth < values.num_residuals(); ++nth) {
    for (size_t unit = 0; unit < shape.units.size() && values.has_residual(nth); ++unit) {
      Op end = kernel_op(kEndFeedback);
      end.reads = {scalar(program, "progress", Access::kRead, kFeedbackProgress)};
      end.writes = {
          program::as(values.operand(UnitValue::kResidual, static_cast<int64_t>(unit), nth),
                      Access::kUpdate, kFeedbackResidual)};
      nodes.push_back(std::move(end));
    }
  }
  append(program, std::move(nodes), "u");
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
  const Movement movement(program, values, placement, cluster,
                          scalar(program, "agreed", Access::kAdd, 0));
  Chain chain(program, shape, movement, options, placement);
  begin_step(program);
  micro_steps(program, chain, options.accumulation);
  clip(program, shape, values, movement);
  update(program, shape, values, movement);
  finish_step(program, shape, values);
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
    for (size_t unit = 0; unit < shape.units.size(); ++unit)
      movement.publish(static_cast<int64_t>(unit), nodes);
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
  const Movement movement(program, values, placement, cluster,
                          scalar(program, "agreed", Access::kAdd, 0));
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
  const Movement movement(program, values, whole, cluster,
                          scalar(program, "agreed", Access::kAdd, 0));
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
  const int position = declare("position", 1, Dtype::kInt64, 1, Lifetime::kResident);
  program.arrays[position].tier = program::Tier::kHost;
  std::vector<Node> nodes;
  for (int64_t b = 0; b <= last; ++b) {
    const BlockSizes sizes = block_sizes(shape, b, batch, options.tokens, options.dtype);
    const int64_t segments = static_cast<int64_t>(shape.blocks[b].segments.size());
    Op op = draft::block_op(draft::kForwardCached, b, {0, segments});
    op.attributes[draft::kBatch] = batch;
    op.attributes[draft::kLength] = options.tokens;
    op.attributes[draft::kCapacity] = capacity;
    const auto add = [&](int array, int64_t index, Access access, int slot) {
      draft::add_operand(op, array, {index}, access, slot);
    };
    add(tokens, 0, Access::kRead, draft::kTokens);
    add(position, 0, Access::kRead, draft::kPosition);
    op.reads.push_back(
        program::as(movement.weights(shape.blocks[b].unit), Access::kRead, draft::kWeights));
    if (b > 0) add(x, b - 1, Access::kRead, draft::kInput);
    b < last ? add(x, b, Access::kWrite, draft::kOutput)
             : add(logits, 0, Access::kWrite, draft::kOutput);
    if (shape.blocks[b].kind == BlockKind::kTransformer)
      add(cache, b - 1, Access::kUpdate, draft::kCache);
    op.attributes[draft::kFlops] = sizes.forward_flops;
    // Attention reaches back over the cache: scratch as for a whole sequence.
    op.attributes[draft::kWorkspace] =
        block_sizes(shape, b, batch, capacity, options.dtype).forward_workspace_bytes;
    nodes.push_back(std::move(op));
    if (b > 0) {
      Op free;
      free.writes = {{x, {b - 1}, Access::kWrite}};
      nodes.push_back(std::move(free));
    }
  }
  append(program, std::move(nodes), "i");
  return program;
}

}  // namespace strait::strategy
