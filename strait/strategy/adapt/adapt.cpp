#include "strait/strategy/adapt/adapt.h"

#include <map>
#include <utility>

#include "strait/strategy/adapt/kernels.h"

namespace strait::strategy {

using program::Access;
using program::Node;
using program::Op;
using program::Operand;

std::string gathered_name(const std::string& gradients) {
  return "h" + gradients.substr(gradients.find('.'));
}

void adapt(draft::Draft& draft, const AdaptPolicy& policy) {
  program::Program& program = draft.program;
  std::map<int, int> sums;  // by array of gradients
  for (const draft::Shard& shard : draft.shards) {
    const auto [sum, fresh] = sums.try_emplace(shard.gradient.array, 0);
    if (!fresh) continue;
    program::ValueArray array = program.arrays[static_cast<size_t>(shard.gradient.array)];
    array.name = gathered_name(array.name);
    array.lifetime = program::Lifetime::kResident;
    array.address = {kGatheredState, shard.unit};
    sum->second = static_cast<int>(program.arrays.size());
    program.arrays.push_back(std::move(array));
  }
  std::vector<Node> nodes;
  for (const draft::Shard& shard : draft.shards) {
    Op op = draft::kernel_op(kGatherGradient);
    op.attributes = {program::Index{0, program::kStepCounter, 1}, policy.start, policy.every,
                     policy.gather};
    op.group = shard.group;
    op.partition = shard.partition;
    const Operand results{draft::find_array(program, "results"), {}};
    Operand sum = shard.gradient;
    sum.array = sums.at(shard.gradient.array);
    op.reads = {program::as(shard.gradient, Access::kRead, kGatheredGradient),
                program::as(results, Access::kRead, kGatherResults)};
    op.writes = {program::as(sum, Access::kUpdate, kGathered)};
    nodes.emplace_back(std::move(op));
  }
  draft::append_rolled(program, std::move(nodes), "u");
}

}  // namespace strait::strategy
