#include "strait/strategy/sequence/sequence.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/draft/segment_ops.h"

namespace strait::strategy {
namespace {

using draft::Visit;
using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;

bool attends(const Op& op) {
  return draft::works_on_segments(op) && draft::range_of(op).holds(Segment::kAttention) &&
         draft::phase_of(op) != Phase::kBackwardWeight;
}

/// Brings keys to the ranks that share sequences, and their gradients back.
class Exchange {
 public:
  Exchange(draft::Draft& draft, const Cluster& cluster, const MeshAxis& axis)
      : group_(draft::add_group(draft.program, cluster, {axis.name, axis.size, axis.stride})),
        lane_(draft::add_lane(draft.program, cluster, group_)) {
    std::vector<program::ValueArray>& arrays = draft.program.arrays;
    const auto find = [&](BlockValue value) {
      return std::ranges::find(arrays, value_name(value), &program::ValueArray::name);
    };
    const auto all = find(BlockValue::kGatheredKeys);
    ensure(all != arrays.end(), "shared sequences without attention");
    parts_ = {all->partition.elements, all->partition.elements / axis.size};
    const auto share = [&](program::ValueArray& array) {
      array.group = group_;
      array.partition = parts_;
    };
    // Nothing else is trained with.
    if (const auto gradient = find(BlockValue::kKeyGradient); gradient != arrays.end())
      share(*gradient);
    keys_.array = draft::declare(
        draft.program, {value_name(BlockValue::kKeys), 1, all->dtype, all->partition.elements});
    share(arrays.back());
  }

  void apply(Visit& visit) const {
    const std::vector<Op> before = std::exchange(visit.ops, {});
    const Operand* const gathered =
        draft::find_operand(before, draft::block_slot(BlockValue::kGatheredKeys));
    const Operand* const gradient =
        draft::find_operand(before, draft::block_slot(BlockValue::kKeyGradient));
    bool here = false;
    for (const Op& op : before) {
      if (attends(op) && !here) {
        visit.ops.push_back(pack(op));
        visit.ops.push_back(transfer(OpKind::kAllGather, keys_, *gathered));
        visit.frees.insert(visit.frees.end(), {keys_, *gathered});
        here = true;
      }
      visit.ops.push_back(op);
      if (draft::works_on_segments(op) && op.group < 0) visit.ops.back().group = group_;
      const Operand* const made =
          attends(op)
              ? program::operand_in(op.writes, draft::block_slot(BlockValue::kGatheredKeyGradient))
              : nullptr;
      if (!made) continue;
      visit.ops.push_back(transfer(OpKind::kReduceScatter, *made, *gradient));
      visit.frees.push_back(*gradient);
    }
  }

 private:
  /// Of the block of an op that attends, which has queries and keys in one of its operands.
  Op pack(const Op& reader) const {
    Op op = reader;
    op.kernel = &draft::kPackKeys;
    op.reads.clear();
    op.writes.clear();
    op.attributes[draft::kFlops] = 0.0;
    op.attributes[draft::kWorkspace] = int64_t{0};
    for (const auto* operands : {&reader.reads, &reader.writes})
      for (const Operand& operand : *operands)
        if (operand.slot == draft::kTokens || operand.slot == draft::kSaved ||
            operand.slot == draft::block_slot(BlockValue::kQkv))
          op.reads.push_back(program::as(operand, Access::kRead, operand.slot));
    op.writes = {program::as(keys_, Access::kWrite, draft::block_slot(BlockValue::kKeys))};
    return op;
  }

  Op transfer(OpKind kind, const Operand& from, const Operand& to) const {
    Op op;
    op.kind = kind;
    op.group = group_;
    op.stream = lane_;
    op.partition = parts_;
    op.reads = {program::as(from, Access::kRead)};
    op.writes = {program::as(to, Access::kWrite)};
    return op;
  }

  int group_, lane_;
  program::Partition parts_;  // of gathered keys over the ranks
  Operand keys_;
};

}  // namespace

void share_sequences(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster) {
  const MeshAxis& axis = draft.mesh.axis("sequence");
  if (!draft.schedule.micro_step || axis.size == 1) return;
  ensure(shape.sequence == axis.size, "shared sequences: the model is not a rank's part");
  draft::rewrite_visits(
      draft, [exchange = Exchange(draft, cluster, axis)](Visit& visit) { exchange.apply(visit); });
}

}  // namespace strait::strategy
