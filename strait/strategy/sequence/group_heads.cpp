#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "strait/draft/head_kernels.h"
#include "strait/sequence/exchanged_heads.h"
#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using enum BlockValue;
using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;

namespace {

/// Steps stand in pairs.
RemapStep pack_of(RemapStep step) { return static_cast<RemapStep>(static_cast<int>(step) / 2 * 2); }
bool moves_qkv(RemapStep step) {
  return pack_of(step) == RemapStep::kPackQkv || pack_of(step) == RemapStep::kPackQkvGradient;
}
/// Whether rows of ranks become heads, or the reverse.
bool goes_to_heads(RemapStep step) {
  return pack_of(step) == RemapStep::kPackQkv || pack_of(step) == RemapStep::kPackAttentionGradient;
}
/// Whether a step takes or makes the rank's own rows.
bool is_of_own(RemapStep step) { return goes_to_heads(step) == (step == pack_of(step)); }

/// What a step takes or makes of the rows of all neighbours.
std::vector<BlockValue> shared_values(RemapStep step) {
  switch (pack_of(step)) {
    case RemapStep::kPackQkv:
      return {kQkv};
    case RemapStep::kPackAttention:
      return {kAttention};
    case RemapStep::kPackAttentionGradient:
      return {kAttentionGradient};
    default:
      return {kQkvGradient, kKeyGradient};
  }
}

/// For its heads a rank has the rows of all neighbours.
BlockExtent shared_extent(BlockExtent extent, const sequence::RankGroup& group) {
  extent.rows = std::max<int64_t>(1, group.rows_of(group.member));
  extent.heads /= group.head_ranks();
  extent.kv_heads /= group.head_ranks();
  extent.sequence = group.size;
  extent.engine = SequenceEngine::kRing;
  extent.attention_rows = 0;
  extent.attends_apart = false;
  extent.row_split = 1;
  return extent;
}

/// The forward keeps these for its backward, or else nothing.
constexpr BlockValue kKept[] = {kQkv, kAttention, kLogSumExp};

bool is_forward(const Op& attention) { return draft::phase_of(attention) == Phase::kForward; }

}  // namespace

GroupHeads::GroupHeads(draft::Draft& draft, const sequence::RankLayout& layout,
                       const ModelShape& shape, const draft::StepOptions& options,
                       const DocumentAxis& axis)
    : axis_(axis),
      groups_(layout.groups),
      attended_rows_(layout.attended_rows()),
      blocks_(static_cast<int64_t>(shape.blocks.size()) - 1),
      extent_(draft::extent_of(shape, options)),
      dtype_(options.dtype) {
  for (size_t group = 0; group < groups_.size(); ++group)
    values_.push_back(exchanges(group) ? declare_group(draft, group) : Values{});
}

GroupHeads::Values GroupHeads::declare_group(draft::Draft& draft, size_t number) const {
  const sequence::RankGroup& group = groups_[number];
  const BlockExtent extent = shared_extent(extent_, group);
  Values values;
  values.shared.fill(-1);
  for (const BlockValue value : {kQkv, kAttention, kLogSumExp, kAttentionSum, kAttentionGradient,
                                 kQkvGradient, kKeyGradient, kDelta, kQuerySum})
    values.shared[value_index(value)] =
        declare_values(draft, extent, dtype_, value,
                       fmt::format("{}_of_heads.{}", value_name(value), number).c_str(), blocks_);
  for (int64_t neighbour = 0; neighbour < group.head_ranks(); ++neighbour) {
    const auto declare = [&](const char* name, int64_t rows, int64_t width) {
      return draft::declare(draft.program,
                            {fmt::format("{}_of_heads.{}.{}", name, number, neighbour), 1, dtype_,
                             std::max<int64_t>(1, rows) * width});
    };
    const auto add = [&](const char* name, int64_t width, std::vector<Messages>& messages) {
      Messages made;
      made.own = declare((std::string("own_") + name).c_str(), group.rows, width);
      made.theirs = declare(name, group.rows_of_neighbour(neighbour), width);
      messages.push_back(made);
    };
    add("moved_qkv", extent.qkv_width(), values.qkv);
    add("moved_attention", extent.attention_width(), values.attention);
  }
  return values;
}

/// Of each block one, as of what else its forward keeps.
Operand GroupHeads::shared(const Op& attention, size_t group, BlockValue value) const {
  return {values_[group].shared[value_index(value)],
          program::attribute<program::Index>(attention, draft::kBlock)};
}

Operand GroupHeads::moved(RemapStep step, size_t group, int64_t neighbour) const {
  const Values& values = values_[group];
  const Messages& messages =
      (moves_qkv(step) ? values.qkv : values.attention)[static_cast<size_t>(neighbour)];
  const bool own = is_of_own(step) || neighbour == groups_[group].neighbour;
  return {own ? messages.own : messages.theirs, {}};
}

/// A rank's own heads are moved in any case, so that what they are in is written.
bool GroupHeads::has_rows(RemapStep step, size_t group, int64_t neighbour) const {
  const sequence::RankGroup& ring = groups_[group];
  if (neighbour == ring.neighbour) return true;
  return (is_of_own(step) ? ring.rows : ring.rows_of_neighbour(neighbour)) > 0;
}

Op GroupHeads::move(const Op& attention, RemapStep step, size_t group, int64_t neighbour) const {
  Op op = moving_op(attention, draft::exchange_kernel(step), axis_.axis.group, attended_rows_);
  op.attributes.push_back(neighbour);
  op.attributes.push_back(static_cast<int64_t>(group));
  return op;
}

std::vector<Operand> GroupHeads::operands_of(const Op& attention, RemapStep step, size_t group,
                                             const std::vector<Operand>& own) const {
  if (is_of_own(step)) return own;
  std::vector<Operand> operands;
  for (const BlockValue value : shared_values(step)) {
    operands.push_back(shared(attention, group, value));
    operands.back().slot = draft::block_slot(value);
  }
  return operands;
}

Op GroupHeads::message(bool sends, size_t group, int64_t neighbour, const Operand& heads) const {
  const sequence::RankGroup& ring = groups_[group];
  const bool up = (neighbour > ring.neighbour) == sends;
  return message_op(sends, axis_.axis.group, axis_.head_lanes[up ? 0 : 1],
                    ring.neighbours[static_cast<size_t>(neighbour)], heads);
}

void GroupHeads::send(const Op& attention, RemapStep pack, size_t group,
                      const std::vector<Operand>& own, std::vector<Op>& ops) const {
  const sequence::RankGroup& ring = groups_[group];
  const auto place = static_cast<RemapStep>(static_cast<int>(pack) + 1);
  const int slot = draft::block_slot(kMovedRows);
  const auto pack_for = [&](int64_t neighbour) {
    Op one = move(attention, pack, group, neighbour);
    for (const Operand& value : operands_of(attention, pack, group, own))
      one.reads.push_back(program::as(value, Access::kRead, value.slot));
    one.writes.push_back(program::as(moved(pack, group, neighbour), Access::kWrite, slot));
    ops.push_back(std::move(one));
  };
  for (const int64_t neighbour : sequence::turns_of(ring.neighbour, ring.head_ranks())) {
    const bool sends = has_rows(pack, group, neighbour);
    if (sends) pack_for(neighbour);
    if (sends) ops.push_back(message(true, group, neighbour, moved(pack, group, neighbour)));
    if (has_rows(place, group, neighbour))
      ops.push_back(message(false, group, neighbour, moved(place, group, neighbour)));
    if (sends) ops.push_back(draft::free_op(moved(pack, group, neighbour)));
  }
  pack_for(ring.neighbour);
}

void GroupHeads::place(const Op& attention, RemapStep place, size_t group,
                       const std::vector<Operand>& own, std::vector<Op>& ops) const {
  const sequence::RankGroup& ring = groups_[group];
  std::vector<int64_t> from = sequence::turns_of(ring.neighbour, ring.head_ranks());
  from.insert(from.begin(), ring.neighbour);
  Access access = is_of_own(place) ? Access::kUpdate : Access::kWrite;
  for (const int64_t neighbour : from) {
    if (!has_rows(place, group, neighbour)) continue;
    const Operand heads = moved(place, group, neighbour);
    Op one = move(attention, place, group, neighbour);
    one.reads.push_back(program::as(heads, Access::kRead, draft::block_slot(kMovedRows)));
    for (const Operand& value : operands_of(attention, place, group, own))
      one.writes.push_back(program::as(value, access, value.slot));
    ops.push_back(std::move(one));
    ops.push_back(draft::free_op(heads));
    access = Access::kUpdate;
  }
}

void GroupHeads::take_qkv(Op& op, const Op& attention, size_t group) const {
  std::erase_if(op.reads, [](const Operand& operand) { return operand.slot != draft::kTokens; });
  op.reads.push_back(
      program::as(shared(attention, group, kQkv), Access::kRead, draft::block_slot(kQkv)));
}

void GroupHeads::attend(Op& op, const Op& attention, size_t group, bool first) const {
  const auto add = [&](std::vector<Operand>& operands, BlockValue value, Access access) {
    const Operand operand = shared(attention, group, value);
    if (operand.array >= 0)
      operands.push_back(program::as(operand, access, draft::block_slot(value)));
  };
  op.attributes[draft::kWorkspace] = int64_t{0};
  std::erase_if(op.reads, [](const Operand& operand) {
    return operand.slot != draft::kTokens && operand.slot != draft::kSequences;
  });
  op.writes.clear();
  const bool forward = is_forward(attention);
  const Access made = first ? Access::kWrite : Access::kUpdate;
  add(op.reads, kQkv, Access::kRead);
  if (forward) {
    for (const BlockValue value : {kLogSumExp, kAttention, kAttentionSum})
      add(op.writes, value, made);
    return;
  }
  for (const BlockValue value : {kLogSumExp, kAttention, kAttentionGradient})
    add(op.reads, value, Access::kRead);
  for (const BlockValue value : {kQkvGradient, kDelta, kQuerySum}) add(op.writes, value, made);
}

void GroupHeads::free(const Op& attention, size_t group, std::vector<Op>& ops) const {
  const bool forward = is_forward(attention);
  const auto end = [&](BlockValue value) {
    const Operand operand = shared(attention, group, value);
    if (operand.array >= 0) ops.push_back(draft::free_op(operand));
  };
  const bool keeps = forward && draft::find_operand({&attention, 1}, draft::kSaved) != nullptr;
  if (!keeps)
    for (const BlockValue value : kKept) end(value);
  if (forward) return end(kAttentionSum);
  for (const BlockValue value : {kAttentionGradient, kQkvGradient, kKeyGradient, kDelta, kQuerySum})
    end(value);
}

}  // namespace strait::strategy
