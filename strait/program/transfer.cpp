#include "strait/program/transfer.h"

#include "strait/base/errors.h"

namespace strait::program {
namespace {
constexpr int64_t kPartAlignment = 16;
}

const ValueArray& transfer_array(const Program& program, const Op& op) {
  const std::vector<Operand>& operands = op.reads.empty() ? op.writes : op.reads;
  ensure(!operands.empty(), "a transfer has no operand");
  return program.arrays[operands.front().array];
}

Partition transfer_partition(const Program& program, const Op& op, int64_t rank) {
  switch (op.kind) {
    case OpKind::kBarrier:
      return {};
    case OpKind::kAllGather:
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
      return op.partition;
    default:
      break;
  }
  const int64_t elements = value_elements(program, transfer_array(program, op), rank);
  if (op.kind != OpKind::kAllReduce) return {elements, elements};
  const int64_t size = program.groups[op.group].size;
  const int64_t exact = (elements + size - 1) / size;
  return {elements, (exact + kPartAlignment - 1) / kPartAlignment * kPartAlignment};
}

std::vector<bool> transferred_arrays(const Program& program) {
  std::vector<bool> transferred(program.arrays.size(), false);
  for_each_op(program.body, [&](const Op& op) {
    if (!is_communication(op.kind)) return;
    for (const auto* operands : {&op.reads, &op.writes})
      for (const Operand& operand : *operands)
        transferred[static_cast<size_t>(operand.array)] = true;
  });
  return transferred;
}

}  // namespace strait::program
