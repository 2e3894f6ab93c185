#include "strait/strategy/finish/postpone.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/finish/postponed_kernels.h"
#include "strait/strategy/finish/step_ops.h"

namespace strait::strategy {
namespace {

using draft::Draft;
using draft::Shard;
using program::Access;
using program::Node;
using program::Op;
using program::Operand;

/// The arrays that hold copies, by that which they are of.
using Copies = std::map<int, int>;

void declare_pending(Draft& draft) {
  const int pending = declare_scalars(draft, "pending", kNumAgreed, program::Tier::kDevice);
  draft.program.arrays[static_cast<size_t>(pending)].lifetime = program::Lifetime::kCarry;
  declare_scalars(draft, "kept", kNumKept, program::Tier::kHost);
  declare_scalars(draft, "validated", kNumValidated, program::Tier::kHost);
}

/// Of the optimizer's part alone, whatever part the array holds.
void declare_copy(Draft& draft, const Shard& shard, int of, Copies& copies) {
  if (copies.contains(of)) return;
  program::ValueArray array = draft.program.arrays[static_cast<size_t>(of)];
  array.name += ".kept";
  array.partition = shard.partition;
  array.group = shard.group;
  array.lifetime = program::Lifetime::kResident;
  array.category = program::Category::kOptimizer;
  array.address = {};
  copies[of] = static_cast<int>(draft.program.arrays.size());
  draft.program.arrays.push_back(std::move(array));
}

Copies declare_copies(Draft& draft) {
  Copies copies;
  for (const Shard& shard : draft.shards) {
    declare_copy(draft, shard, shard.weights.array, copies);
    for (const Operand& moment : shard.moments) declare_copy(draft, shard, moment.array, copies);
  }
  return copies;
}

Operand copy_of(Operand operand, const Copies& copies, Access access, int slot) {
  operand.array = copies.at(operand.array);
  return program::as(operand, access, slot);
}

Op guess(const Draft& draft) {
  Op op = draft::kernel_op(kGuess);
  op.reads = {scalar(draft, "agreed", Access::kRead, kGuessAgreed),
              scalar(draft, "step", Access::kRead, kGuessStep),
              scalar(draft, "progress", Access::kRead, kGuessProgress),
              scalar(draft, "validated", Access::kRead, kGuessValidated)};
  op.writes = {scalar(draft, "results", Access::kWrite, kGuessResults),
               scalar(draft, "pending", Access::kWrite, kGuessPending),
               scalar(draft, "kept", Access::kWrite, kGuessKept)};
  return op;
}

Op keep(const Shard& shard, const Copies& copies) {
  Op op = shard_op(kKeep, shard);
  op.reads = {program::as(shard.weights, Access::kRead, kKeepWeights)};
  op.writes = {copy_of(shard.weights, copies, Access::kWrite, kKeepWeightsCopy)};
  for (const Operand& moment : shard.moments) {
    op.reads.push_back(program::as(moment, Access::kRead, kKeepMoments));
    op.writes.push_back(copy_of(moment, copies, Access::kWrite, kKeepMomentsCopy));
  }
  return op;
}

void update(Draft& draft, const Copies& copies) {
  std::vector<Node> nodes;
  for (const Shard& shard : draft.shards) {
    nodes.emplace_back(keep(shard, copies));
    nodes.emplace_back(update_op(draft, shard, true));
    nodes.insert(nodes.end(), shard.publish.begin(), shard.publish.end());
  }
  draft::append_rolled(draft.program, std::move(nodes), "i");
}

Op validate(const Draft& draft) {
  Op op = draft::kernel_op(kValidate);
  op.reads = {scalar(draft, "pending", Access::kRead, kValidatePending)};
  op.writes = {scalar(draft, "kept", Access::kUpdate, kValidateKept),
               scalar(draft, "validated", Access::kWrite, kValidateValidated),
               scalar(draft, "progress", Access::kUpdate, kValidateProgress)};
  return op;
}

Op amend(const Draft& draft, const Shard& shard, const Copies& copies) {
  Op op = shard_op(kAmend, shard);
  op.reads.push_back(scalar(draft, "validated", Access::kRead, kAmendValidated));
  op.writes = {program::as(shard.weights, Access::kUpdate, kAmendWeights),
               copy_of(shard.weights, copies, Access::kUpdate, kAmendWeightsCopy)};
  for (const Operand& moment : shard.moments) {
    op.writes.push_back(program::as(moment, Access::kUpdate, kAmendMoments));
    op.writes.push_back(copy_of(moment, copies, Access::kUpdate, kAmendMomentsCopy));
  }
  return op;
}

void append_validation(Draft& draft, const Copies& copies, bool publishes) {
  draft.program.body.push_back(validate(draft));
  std::vector<Node> nodes;
  for (const Shard& shard : draft.shards) {
    nodes.emplace_back(amend(draft, shard, copies));
    if (publishes) nodes.insert(nodes.end(), shard.publish.begin(), shard.publish.end());
  }
  draft::append_rolled(draft.program, std::move(nodes), "i");
}

bool writes(const Node& node, const std::set<int>& arrays) {
  if (const auto* repeat = std::get_if<program::Repeat>(&node))
    return std::ranges::any_of(repeat->body,
                               [&](const Node& inner) { return writes(inner, arrays); });
  return std::ranges::any_of(std::get<Op>(node).writes, [&](const Operand& operand) {
    return arrays.contains(operand.array);
  });
}

/// The validation comes before what first writes a gradient.
void insert_validation(Draft& draft, const Copies& copies) {
  std::set<int> gradients;
  for (const Shard& shard : draft.shards) gradients.insert(shard.gradient.array);
  std::vector<Node>& body = draft.program.body;
  const auto first =
      std::ranges::find_if(body, [&](const Node& node) { return writes(node, gradients); });
  std::vector<Node> rest(std::make_move_iterator(first), std::make_move_iterator(body.end()));
  body.erase(first, body.end());
  append_validation(draft, copies, false);
  std::ranges::move(rest, std::back_inserter(body));
}

}  // namespace

void postpone(Draft& draft) {
  declare_pending(draft);
  const Copies copies = declare_copies(draft);
  insert_validation(draft, copies);
  add_norms(draft);
  draft.program.body.push_back(guess(draft));
  update(draft, copies);
  draft.program.body.push_back(sum_scalars(draft, "pending"));
  Op end = finish_op(draft);
  end.reads.push_back(scalar(draft, "validated", Access::kRead, kFinishValidated));
  draft.program.body.push_back(std::move(end));
}

void validate_alone(Draft& draft) {
  declare_pending(draft);
  const Copies copies = declare_copies(draft);
  draft.program.body.clear();
  draft.program.tokens = 0;
  append_validation(draft, copies, true);
}

}  // namespace strait::strategy
