#include "strait/draft/draft.h"

#include <algorithm>
#include <utility>

#include "strait/base/errors.h"
#include "strait/program/roll.h"

namespace strait::draft {
namespace {

/// Outermost level that a group of ranks spans; groups are translates of the one that holds rank 0.
int64_t level_of(const program::Group& group, const Cluster& cluster) {
  if (group.size == 1) return 0;
  if (group.lists.empty()) return cluster.level_between(0, (group.size - 1) * group.stride);
  const std::vector<int64_t>& members = group.lists.lists().front();
  return cluster.level_between(members.front(), members.back());
}

}  // namespace

int find_array(const program::Program& program, const std::string& name) {
  for (size_t i = 0; i < program.arrays.size(); ++i)
    if (program.arrays[i].name == name) return static_cast<int>(i);
  throw InternalError("program has no value named " + name);
}

int declare(program::Program& program, const WholeValues& values) {
  program::ValueArray array;
  array.name = values.name;
  array.count = values.count;
  array.dtype = values.dtype;
  array.partition = {values.elements, values.elements};
  array.lifetime = values.lifetime;
  array.category = values.category;
  array.tier = values.tier;
  program.arrays.push_back(std::move(array));
  return static_cast<int>(program.arrays.size()) - 1;
}

int add_group(program::Program& program, const Cluster& cluster, program::Group group) {
  for (size_t i = 0; i < program.groups.size(); ++i) {
    const program::Group& other = program.groups[i];
    if (other.size == group.size && other.stride == group.stride && other.nest == group.nest &&
        other.lists == group.lists)
      return static_cast<int>(i);
  }
  group.level = level_of(group, cluster);
  program.groups.push_back(std::move(group));
  return static_cast<int>(program.groups.size()) - 1;
}

int add_lane(program::Program& program, const Cluster& cluster, int group) {
  const int64_t number = program.groups[static_cast<size_t>(group)].level;
  const std::string& level = cluster.levels[static_cast<size_t>(number)].name;
  const int64_t used = std::ranges::count_if(
      program.streams, [&](const program::Stream& stream) { return stream.resource == level; });
  program.streams.push_back({level, used});
  return static_cast<int>(program.streams.size()) - 1;
}

namespace {

/// Calls act(number) for every array that the nodes name.
template <class Act>
void for_each_array(std::vector<program::Node>& nodes, Act&& act) {
  for (program::Node& node : nodes) {
    if (auto* op = std::get_if<program::Op>(&node)) {
      for (auto* operands : {&op->reads, &op->writes, &op->waits})
        for (program::Operand& operand : *operands) act(operand.array);
    } else {
      auto& repeat = std::get<program::Repeat>(node);
      for_each_array(repeat.body, act);
      for (int& array : repeat.carried) act(array);
    }
  }
}

}  // namespace

void rewrite_visits(Draft& draft, std::function<void(Visit&)> rewrite) {
  draft.schedule.micro_step = [whole = std::move(draft.schedule.micro_step),
                               rewrite = std::move(rewrite)](int64_t number,
                                                             const program::Index& later) {
    MicroStep step = whole(number, later);
    for (Visit& visit : step.visits) rewrite(visit);
    return step;
  };
}

void drop_unnamed(program::Program& program) {
  std::vector<bool> named;
  for (const program::ValueArray& array : program.arrays)
    named.push_back(array.lifetime != program::Lifetime::kTransient ||
                    array.category != program::Category::kActivations);
  for_each_array(program.body, [&](int array) { named[static_cast<size_t>(array)] = true; });
  std::vector<int> number;  // of those that stay
  std::vector<program::ValueArray> arrays;
  for (size_t i = 0; i < named.size(); ++i) {
    number.push_back(static_cast<int>(arrays.size()));
    if (named[i]) arrays.push_back(std::move(program.arrays[i]));
  }
  program.arrays = std::move(arrays);
  for_each_array(program.body, [&](int& array) { array = number[static_cast<size_t>(array)]; });
}

program::Op kernel_op(const program::Kernel& kernel) {
  program::Op op;
  op.kind = program::OpKind::kKernel;
  op.kernel = &kernel;
  return op;
}

program::Op free_op(const program::Operand& operand) {
  program::Op op;
  op.kind = program::OpKind::kFree;
  op.writes = {program::as(operand, program::Access::kWrite)};
  return op;
}

void append_rolled(program::Program& program, std::vector<program::Node> nodes,
                   const char* variable) {
  for (program::Node& node :
       program::roll(std::move(nodes), program.num_loops, variable, program.arrays))
    program.body.push_back(std::move(node));
}

}  // namespace strait::draft
