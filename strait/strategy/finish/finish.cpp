#include "strait/strategy/finish/finish.h"

#include <algorithm>
#include <utility>

#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/finish/postpone.h"
#include "strait/strategy/finish/step_ops.h"
#include "strait/strategy/finish/step_values.h"

namespace strait::strategy {
namespace {

using draft::Draft;
using draft::Purpose;
using draft::Shard;
using program::Access;
using program::Node;
using program::Op;
using program::Operand;

/// Sums the agreed scalars over the ranks of their scope.
void agree(Draft& draft) {
  if (draft.program.groups[static_cast<size_t>(draft.agreement)].size == 1) return;
  draft.program.body.push_back(sum_scalars(draft, "agreed"));
}

/// Gradients of units that other classes hold, too, become those of the whole unit.
void sum_shared(Draft& draft) {
  for (const draft::SharedUnit& shared : draft.shared) {
    const Shard& shard = *std::ranges::find(draft.shards, shared.unit, &Shard::unit);
    Op op;
    op.kind = program::OpKind::kAllReduce;
    op.stream = shared.stream;
    op.group = shared.group;
    op.reads = {program::as(shard.gradient, Access::kRead)};
    op.writes = {program::as(shard.gradient, Access::kWrite)};
    draft.program.body.push_back(std::move(op));
  }
}

/// Norm of the reduced gradients, one all-reduce, and the clip factor.
void clip(Draft& draft) {
  add_norms(draft);
  agree(draft);
  Op op = draft::kernel_op(kClipFactor);
  op.reads = {scalar(draft, "agreed", Access::kRead, kClipAgreed),
              scalar(draft, "step", Access::kRead, kClipStep)};
  op.writes = {scalar(draft, "results", Access::kWrite, kClipResults)};
  draft.program.body.push_back(std::move(op));
}

bool is_transient(const Draft& draft, const Operand& value) {
  const program::ValueArray& array = draft.program.arrays[static_cast<size_t>(value.array)];
  return array.lifetime == program::Lifetime::kTransient;
}

void update(Draft& draft, bool in_backward) {
  std::vector<Node> nodes;
  for (const Shard& shard : draft.shards) {
    add_update(draft, shard, !in_backward, nodes);
    if (is_transient(draft, shard.gradient)) nodes.emplace_back(draft::free_op(shard.gradient));
  }
  draft::append_rolled(draft.program, std::move(nodes), "i");
}

/// What the next step starts from, and residuals that start anew with it.
void prepare_next(Draft& draft) {
  draft.program.body.push_back(finish_op(draft));
  std::vector<Node> nodes;
  const size_t residuals = draft.shards.empty() ? 0 : draft.shards.front().residuals.size();
  for (size_t nth = 0; nth < residuals; ++nth) {
    for (const Shard& shard : draft.shards) {
      Op end = draft::kernel_op(kEndFeedback);
      end.attributes = {shard.residuals[nth].ends_every};
      end.reads = {scalar(draft, "progress", Access::kRead, kFeedbackProgress)};
      end.writes = {program::as(shard.residuals[nth].value, Access::kUpdate, kFeedbackResidual)};
      nodes.push_back(std::move(end));
    }
  }
  draft::append_rolled(draft.program, std::move(nodes), "u");
}

/// Brings the optimizer's weights to where they are gathered from, where the optimizer has its own.
void publish(Draft& draft) {
  std::vector<Node> nodes;
  for (Shard& shard : draft.shards)
    for (Node& node : shard.publish)
      if (shard.own_weights) nodes.push_back(std::move(node));
  draft::append_rolled(draft.program, std::move(nodes), "i");
}

}  // namespace

void begin(Draft& draft, const draft::StepOptions& options) {
  declare_scalars(draft, "agreed", kNumAgreed, program::Tier::kDevice);
  declare_scalars(draft, "results", kNumResults, program::Tier::kHost);
  declare_scalars(draft, "step", kNumStepValues, program::Tier::kHost);
  const int progress = declare_scalars(draft, "progress", kNumProgress, program::Tier::kHost);
  draft.program.arrays[static_cast<size_t>(progress)].address.state = "progress";
  if (options.purpose != Purpose::kTrain && options.purpose != Purpose::kEvaluate) return;
  Op op = draft::kernel_op(kBeginStep);
  op.reads = {scalar(draft, "progress", Access::kRead, kBeginProgress)};
  op.writes = {scalar(draft, "step", Access::kWrite, kBeginStepValues),
               scalar(draft, "agreed", Access::kWrite, kBeginAgreed)};
  draft.program.body.push_back(std::move(op));
}

void finish(Draft& draft, const draft::StepOptions& options) {
  switch (options.purpose) {
    case Purpose::kTrain:
      if (options.validation == draft::Validation::kAlone) return validate_alone(draft);
      sum_shared(draft);
      if (options.validation == draft::Validation::kBehind) return postpone(draft);
      clip(draft);
      update(draft, options.in_backward);
      return prepare_next(draft);
    case Purpose::kEvaluate:
      return agree(draft);
    case Purpose::kPublish:
      return publish(draft);
    case Purpose::kGenerate:
    case Purpose::kBorder:
      return;
  }
}

}  // namespace strait::strategy
