#include "strait/strategy/sharding/movement.h"

#include <algorithm>

namespace strait::strategy {

using program::Node;
using program::Op;
using program::Operand;
using program::OpKind;
using program::Role;

namespace {

/// Outermost level that a group of ranks spans; groups are translates of the one that holds rank 0.
int64_t level_of(const program::Group& group, const Cluster& cluster) {
  if (group.size == 1) return 0;
  return cluster.level_between(0, (group.size - 1) * group.stride);
}

}  // namespace

Movement::Movement(program::Program& program, const UnitValues& values, const Placement& placement,
                   const Cluster& cluster)
    : program_(program), values_(values), placement_(placement), cluster_(cluster) {
  for (program::Group& group : program_.groups) group.level = level_of(group, cluster_);
  gather_stream_ = lane(values_.inner_group());
  reduce_stream_ = lane(values_.inner_group());
  if (values_.across_group() >= 0) across_stream_ = lane(values_.across_group());
}

int Movement::lane(int group) {
  const std::string& level = cluster_.levels[program_.groups[group].level].name;
  const int64_t used =
      std::count_if(program_.streams.begin(), program_.streams.end(),
                    [&](const program::Stream& stream) { return stream.resource == level; });
  program_.streams.push_back({level, used});
  return static_cast<int>(program_.streams.size()) - 1;
}

Operand Movement::weights(int64_t unit) const {
  return values_.operand(gathers() ? UnitValue::kGathered : UnitValue::kShard, unit,
                         Role::kWeights);
}

Operand Movement::gradient(int64_t unit) const {
  return values_.operand(gradient_is_fresh() ? UnitValue::kFull : UnitValue::kGradient, unit,
                         Role::kGradient);
}

Op Movement::transfer(OpKind kind, int stream, int group, int64_t unit, int64_t block) const {
  Op op;
  op.kind = kind;
  op.stream = stream;
  op.group = group;
  op.block = {block, -1, 0};
  op.partition = values_.partition(unit);
  return op;
}

void Movement::gather(int64_t unit, int64_t block, std::vector<Operand> waits,
                      std::vector<Node>& nodes) const {
  if (!gathers()) return;
  Op op = transfer(OpKind::kAllGather, gather_stream_, values_.inner_group(), unit, block);
  op.reads = {values_.operand(UnitValue::kShard, unit, Role::kSource)};
  op.writes = {values_.operand(UnitValue::kGathered, unit, Role::kDestination)};
  op.waits = std::move(waits);
  nodes.push_back(std::move(op));
}

void Movement::release(int64_t unit, std::vector<Node>& nodes) const {
  if (!gathers()) return;
  Op op;
  op.kind = OpKind::kFree;
  op.writes = {values_.operand(UnitValue::kGathered, unit, Role::kDestination)};
  nodes.push_back(std::move(op));
}

void Movement::reduce(int64_t unit, int64_t block, bool accumulate, ReducePhase phase,
                      std::vector<Node>& nodes) const {
  const bool last = phase == ReducePhase::kLast;
  const bool across = values_.across_group() >= 0 && placement_.ranks > 1;
  const auto free_value = [&](UnitValue value) {
    Op op;
    op.kind = OpKind::kFree;
    op.writes = {values_.operand(value, unit, Role::kDestination)};
    nodes.push_back(std::move(op));
  };
  const auto emit = [&](Op op, UnitValue from, UnitValue to, bool add) {
    op.reads = {values_.operand(from, unit, Role::kSource)};
    op.writes = {values_.operand(to, unit, Role::kDestination)};
    op.accumulate = add;
    nodes.push_back(std::move(op));
  };
  const Op inner =
      transfer(OpKind::kReduceScatter, reduce_stream_, values_.inner_group(), unit, block);
  const auto sum_across = [&](UnitValue from, bool add) {
    Op op = transfer(OpKind::kAllReduce, across_stream_, values_.across_group(), unit, block);
    op.partition = {};
    emit(std::move(op), from, UnitValue::kGradient, add);
  };
  if (placement_.gradients > 1) {
    const bool every = placement_.across_every_micro_step;
    emit(inner, UnitValue::kFull, every ? UnitValue::kReduced : UnitValue::kGradient,
         !every && accumulate);
    free_value(UnitValue::kFull);
    if (every) {
      sum_across(UnitValue::kReduced, accumulate);
      free_value(UnitValue::kReduced);
    }
  } else if (last && placement_.optimizer > 1) {
    emit(inner, UnitValue::kGradient, UnitValue::kGradient, false);
  }
  if (last && across && !placement_.across_every_micro_step)
    sum_across(UnitValue::kGradient, false);
}

std::vector<Operand> Movement::reduction_buffers(int64_t unit) const {
  std::vector<Operand> buffers;
  if (placement_.gradients > 1)
    buffers.push_back(values_.operand(UnitValue::kFull, unit, Role::kSource));
  if (placement_.across_every_micro_step)
    buffers.push_back(values_.operand(UnitValue::kReduced, unit, Role::kSource));
  return buffers;
}

void Movement::publish(int64_t unit, int64_t block, std::vector<Node>& nodes) const {
  if (placement_.weights > 1 || placement_.optimizer == 1) return;
  Op op = transfer(OpKind::kAllGather, gather_stream_, values_.inner_group(), unit, block);
  op.reads = {values_.operand(UnitValue::kShard, unit, Role::kSource)};
  op.writes = {values_.operand(UnitValue::kShard, unit, Role::kDestination)};
  nodes.push_back(std::move(op));
}

}  // namespace strait::strategy
