#include <algorithm>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using program::Op;
using program::Operand;
using program::OpKind;

GatheredKeys::GatheredKeys(draft::Draft& draft, const SequenceAxis& axis) : axis_(axis) {
  std::vector<program::ValueArray>& arrays = draft.program.arrays;
  const auto find = [&](BlockValue value) {
    return std::ranges::find(arrays, value_name(value), &program::ValueArray::name);
  };
  const auto all = find(BlockValue::kGatheredKeys);
  ensure(all != arrays.end(), "shared sequences without attention");
  parts_ = {all->partition.elements, all->partition.elements / axis.size};
  const auto share = [&](program::ValueArray& array) {
    array.group = axis_.group;
    array.partition = parts_;
  };
  // Nothing else is trained with.
  if (const auto gradient = find(BlockValue::kKeyGradient); gradient != arrays.end())
    share(*gradient);
  keys_.array = draft::declare(
      draft.program, {value_name(BlockValue::kKeys), 1, all->dtype, all->partition.elements});
  share(arrays.back());
}

void GatheredKeys::apply(draft::Visit& visit) const {
  const std::vector<Op> before = std::exchange(visit.ops, {});
  const Operand* const gathered =
      draft::find_operand(before, draft::block_slot(BlockValue::kGatheredKeys));
  const Operand* const gradient =
      draft::find_operand(before, draft::block_slot(BlockValue::kKeyGradient));
  bool here = false;
  for (const Op& op : before) {
    if (attends(op) && !here) {
      visit.ops.push_back(pack_keys(op, keys_));
      mark_round(visit.ops.back(), 0);
      visit.ops.push_back(transfer(OpKind::kAllGather, keys_, *gathered));
      visit.frees.insert(visit.frees.end(), {keys_, *gathered});
      here = true;
    }
    visit.ops.push_back(beside_attention(op, axis_));
    const Operand* const made =
        attends(op)
            ? program::operand_in(op.writes, draft::block_slot(BlockValue::kGatheredKeyGradient))
            : nullptr;
    if (!made) continue;
    visit.ops.push_back(transfer(OpKind::kReduceScatter, *made, *gradient));
    visit.frees.push_back(*gradient);
  }
}

Op GatheredKeys::transfer(OpKind kind, const Operand& from, const Operand& to) const {
  Op op = transfer_op(kind, axis_, from, to);
  op.partition = parts_;
  return op;
}

}  // namespace strait::strategy
