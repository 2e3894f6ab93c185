#include "strait/strategy/sequence/sequence.h"

#include "strait/base/errors.h"
#include "strait/strategy/sequence/exchange.h"
#include "strait/strategy/sequence/weights.h"

namespace strait::strategy {

using program::Access;
using program::Op;
using program::Operand;

int declare_values(draft::Draft& draft, const BlockExtent& extent, Dtype dtype, BlockValue value,
                   const char* name, int64_t count) {
  const int64_t bytes = value_elements(value, extent) * dtype_bytes(dtype);
  const Dtype own = value_dtype(value, dtype);
  return bytes == 0 ? -1
                    : draft::declare(draft.program, {name, count, own, bytes / dtype_bytes(own)});
}

Op beside_attention(Op op, const SequenceAxis& axis) {
  if (draft::works_on_segments(op) && op.group < 0) op.group = axis.group;
  return op;
}

bool attends(const Op& op) {
  return draft::works_on_segments(op) && draft::range_of(op).holds(Segment::kAttention) &&
         draft::phase_of(op) != Phase::kBackwardWeight;
}

const Operand& qkv_gradient_of(const Op& attention) {
  const Operand* made =
      program::operand_in(attention.writes, draft::block_slot(BlockValue::kQkvGradient));
  if (made == nullptr) made = program::operand_in(attention.writes, draft::kDeferred);
  ensure(made != nullptr, "a backward of attention without its gradient");
  return *made;
}

Op pack_keys(const Op& reader, const Operand& keys) {
  Op op = reader;
  op.kernel = &draft::kPackKeys;
  op.reads.clear();
  op.writes.clear();
  draft::set_flops(op, 0);
  op.attributes[draft::kWorkspace] = int64_t{0};
  for (const auto* operands : {&reader.reads, &reader.writes})
    for (const Operand& operand : *operands)
      if (operand.slot == draft::kTokens || operand.slot == draft::kSaved ||
          operand.slot == draft::block_slot(BlockValue::kQkv))
        op.reads.push_back(program::as(operand, Access::kRead, operand.slot));
  op.writes = {program::as(keys, Access::kWrite, draft::block_slot(BlockValue::kKeys))};
  return op;
}

void mark_round(Op& op, int64_t number, const sequence::KeyPart& part) {
  op.attributes.insert(op.attributes.end(), {number, part.number, part.parts});
}

Op transfer_op(program::OpKind kind, const SequenceAxis& axis, const Operand& from,
               const Operand& to) {
  Op op;
  op.kind = kind;
  op.group = axis.group;
  op.stream = axis.lane;
  op.reads = {program::as(from, Access::kRead)};
  op.writes = {program::as(to, Access::kWrite)};
  return op;
}

Op message_op(bool sends, int group, int lane, int64_t peer, const Operand& value) {
  Op op;
  op.kind = sends ? program::OpKind::kSend : program::OpKind::kReceive;
  op.group = group;
  op.stream = lane;
  op.peer = {peer};
  if (sends)
    op.reads = {program::as(value, Access::kRead)};
  else
    op.writes = {program::as(value, Access::kWrite)};
  return op;
}

Op moving_op(const Op& attention, const program::Kernel& kernel, int group, int64_t rows) {
  Op op = attention;
  op.kernel = &kernel;
  op.group = group;
  draft::set_flops(op, 0);
  op.attributes[draft::kWorkspace] = int64_t{0};
  op.attributes[draft::kLength] = rows;
  std::erase_if(op.reads, [](const Operand& operand) { return operand.slot != draft::kTokens; });
  op.writes.clear();
  return op;
}

namespace {

/// Every lane that some plan of the run may need: rows of a batch have plans of their own, and
/// their ranks must number the lanes that they share with others alike. Where the axis leaves its
/// nodes transfers may be routed, and neighbours may exchange heads.
DocumentAxis document_axis(draft::Draft& draft, const Cluster& cluster, const SequenceAxis& ranks,
                           const sequence::Plan& plan) {
  const auto add_lane = [&] { return draft::add_lane(draft.program, cluster, ranks.group); };
  DocumentAxis documents{ranks, draft.mesh.coordinate(draft.rank, "sequence"), {ranks.lane}};
  for (size_t lane = 1; lane < documents.lanes.size(); ++lane) documents.lanes[lane] = add_lane();
  documents.rows_lane = add_lane();
  if (plan.grid.nodes == 1) return documents;
  for (int& lane : documents.head_lanes) lane = add_lane();
  for (int& lane : documents.crossing_lanes) lane = add_lane();
  documents.dispatch_lane = add_lane();
  documents.combine_lane = add_lane();
  return documents;
}

}  // namespace

void share_sequences(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
                     const draft::StepOptions& options) {
  const MeshAxis& axis = draft.mesh.axis("sequence");
  if (!draft.schedule.micro_step || axis.size == 1) return;
  ensure(shape.sequence == axis.size, "shared sequences: the model is not a rank's part");
  const auto add_axis = [&](const char* name, int64_t size, int64_t stride) -> SequenceAxis {
    const int group = draft::add_group(draft.program, cluster, {name, size, stride});
    return {size, group, draft::add_lane(draft.program, cluster, group)};
  };
  const auto rewrite = [&](auto engine) {
    draft::rewrite_visits(
        draft, [engine = std::move(engine)](draft::Visit& visit) { engine.apply(visit); });
  };
  if (!draft.splits_backward)
    draft::rewrite_visits(
        draft, [early = EarlyWeights(shape, options)](draft::Visit& visit) { early.apply(visit); });
  const int64_t heads = shape.head_ranks;
  if (shape.engine == SequenceEngine::kHeads && heads < axis.size)
    return rewrite(HeadsRing(draft, shape, options,
                             {add_axis("heads", heads, axis.stride),
                              add_axis("ring", axis.size / heads, axis.stride * heads)}));
  const SequenceAxis ranks = add_axis(axis.name.c_str(), axis.size, axis.stride);
  if (options.plan)
    rewrite(Documents(draft, shape, options, document_axis(draft, cluster, ranks, *options.plan)));
  else if (shape.engine == SequenceEngine::kHeads)
    rewrite(Heads(draft, shape, options, ranks));
  else if (shape.engine == SequenceEngine::kRing)
    rewrite(Ring(draft, draft::extent_of(shape, options), options, ranks));
  else
    rewrite(GatheredKeys(draft, ranks));
}

void end_values(draft::Draft& draft) {
  if (!draft.schedule.micro_step || draft.mesh.axis("sequence").size == 1) return;
  draft::rewrite_visits(draft, end_behind_last_use);
}

}  // namespace strait::strategy
