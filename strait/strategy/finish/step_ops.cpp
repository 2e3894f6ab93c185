#include "strait/strategy/finish/step_ops.h"

#include <utility>
#include <vector>

#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/finish/step_values.h"

namespace strait::strategy {

using draft::Draft;
using draft::Shard;
using program::Access;
using program::Node;
using program::Op;
using program::Operand;

Operand scalar(const Draft& draft, const char* name, Access access, int slot) {
  return {draft::find_array(draft.program, name), {}, access, slot};
}

int declare_scalars(Draft& draft, const char* name, int64_t elements, program::Tier tier) {
  return draft::declare(draft.program,
                        {name, 1, Dtype::kFloat64, elements, program::Lifetime::kResident,
                         program::Category::kBuffers, tier});
}

Op sum_scalars(const Draft& draft, const char* name) {
  Op op;
  op.kind = program::OpKind::kAllReduce;
  op.stream = draft.agreement_stream;
  op.group = draft.agreement;
  op.reads = {scalar(draft, name, Access::kRead, 0)};
  op.writes = {scalar(draft, name, Access::kWrite, 0)};
  return op;
}

Op shard_op(const program::Kernel& kernel, const Shard& shard) {
  Op op = draft::kernel_op(kernel);
  op.attributes = {program::Index{shard.unit}};
  op.group = shard.group;
  op.partition = shard.partition;
  op.reads = {shard.gradient};
  return op;
}

Op update_op(const Draft& draft, const Shard& shard, bool results) {
  Op op = shard_op(kUpdate, shard);
  op.reads.push_back(scalar(draft, "step", Access::kRead, kUpdateStep));
  if (results) op.reads.push_back(scalar(draft, "results", Access::kRead, kUpdateResults));
  op.writes = {program::as(shard.weights, Access::kUpdate, kUpdateWeights)};
  for (const Operand& moment : shard.moments)
    op.writes.push_back(program::as(moment, Access::kUpdate, kUpdateMoments));
  return op;
}

void add_update(const Draft& draft, const Shard& shard, bool results, std::vector<Node>& nodes) {
  Op op = update_op(draft, shard, results);
  if (shard.rounded)
    op.writes.push_back(program::as(*shard.rounded, Access::kUpdate, kUpdateRounded));
  nodes.emplace_back(std::move(op));
  nodes.insert(nodes.end(), shard.publish.begin() + (shard.rounded ? 1 : 0), shard.publish.end());
}

void add_norms(Draft& draft) {
  std::vector<Node> nodes;
  for (auto shard = draft.shards.rbegin(); shard != draft.shards.rend(); ++shard) {
    Op op = shard_op(kSquaredNormOf, *shard);
    op.writes = {scalar(draft, "agreed", Access::kAdd, kNormAgreed)};
    nodes.push_back(std::move(op));
  }
  draft::append_rolled(draft.program, std::move(nodes), "i");
}

Op finish_op(const Draft& draft) {
  Op op = draft::kernel_op(kFinishStep);
  op.reads = {scalar(draft, "results", Access::kRead, kFinishResults),
              scalar(draft, "step", Access::kRead, kFinishStepValues)};
  op.writes = {scalar(draft, "progress", Access::kUpdate, kFinishProgress)};
  return op;
}

}  // namespace strait::strategy
