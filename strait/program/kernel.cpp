#include "strait/program/kernel.h"

#include "strait/program/program.h"

namespace strait::program {

const char* access_name(Access access) {
  switch (access) {
    case Access::kRead:
      return "read";
    case Access::kWrite:
      return "write";
    case Access::kUpdate:
      return "update";
    case Access::kAdd:
      return "add";
  }
  return "?";
}

double touched_bytes(const Program& program, const Op& op, int64_t rank) {
  double bytes = 0;
  for (const auto* operands : {&op.reads, &op.writes}) {
    for (const Operand& operand : *operands) {
      if (!op.kernel->operands[static_cast<size_t>(operand.slot)].whole) continue;
      const double once = static_cast<double>(
          value_bytes(program, program.arrays[operand.array], rank, operand.index.constant));
      bytes += reads_before(operand) ? 2 * once : once;
    }
  }
  return bytes;
}

KernelCost cost_of(const Program& program, const Op& op, int64_t rank) {
  if (op.kernel == nullptr) return {};
  if (op.kernel->cost != nullptr) return op.kernel->cost(program, op, rank);
  KernelCost cost;
  cost.bytes = touched_bytes(program, op, rank);
  return cost;
}

}  // namespace strait::program
