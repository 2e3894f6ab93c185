// Kernels that nobody executes but tests: programs of tests call them.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// Operands of test kernels: any values, in any way.
inline std::vector<KernelOperand> any_values() {
  return {{"values", kReads | kWrites | kUpdates | kAdds, Count::kAny}};
}

/// Where it does not matter what is computed.
inline const Kernel kTouch{"touch", Bound::kNothing, any_values(), {}};

/// The same with a name, for executors that do this or that.
inline const Kernel kCall{
    "call", Bound::kNothing, any_values(), {{"name", AttributeType::kText, true}}};
enum CallAttribute : int { kName };

/// Work on a block of a model that costs what its attributes say, and the touching of its operands.
enum WorkAttribute : int {
  kBlock,
  kSegments,
  kMicroBatch,
  kFlops,
  kBytes,
  kWorkspace,
};
inline KernelCost work_cost(const Program& program, const Op& op, int64_t rank) {
  KernelCost cost;
  cost.flops = attribute<double>(op, kFlops);
  cost.bytes = attribute<double>(op, kBytes) + touched_bytes(program, op, rank);
  cost.workspace_bytes = attribute<int64_t>(op, kWorkspace);
  return cost;
}
inline Kernel work_kernel(const char* name) {
  return {name,
          Bound::kProducts,
          any_values(),
          {{"block", AttributeType::kIndex, true},
           {"segments", AttributeType::kRange, true},
           {"micro-batch", AttributeType::kIndex},
           {"flops", AttributeType::kNumber},
           {"bytes", AttributeType::kNumber},
           {"workspace", AttributeType::kInteger}},
          work_cost};
}
inline const Kernel kForward = work_kernel("forward");
inline const Kernel kBackward = work_kernel("backward");

/// Fetches a micro-batch.
inline const Kernel kLoad{
    "load", Bound::kNothing, any_values(), {{"micro-batch", AttributeType::kIndex, true}}};

/// An index may use a loop variable: 3, or loop + 1.
inline Operand at(int array, int64_t constant = 0, int loop = kNoLoop, int64_t scale = 1) {
  return {array, {constant, loop, loop == kNoLoop ? 0 : scale}};
}
inline Operand updated(const Operand& operand) { return as(operand, Access::kUpdate); }
inline Operand added(const Operand& operand) { return as(operand, Access::kAdd); }

/// What is listed as written and says nothing of its access is overwritten.
inline std::vector<Operand> overwritten(std::vector<Operand> operands) {
  for (Operand& operand : operands)
    if (operand.access == Access::kRead) operand.access = Access::kWrite;
  return operands;
}

inline Op make_op(OpKind kind, std::vector<Operand> reads, std::vector<Operand> writes,
                  int stream = kCompute) {
  Op op;
  op.kind = kind;
  op.reads = std::move(reads);
  op.writes = overwritten(std::move(writes));
  op.stream = stream;
  return op;
}
inline Op touch_op(std::vector<Operand> reads, std::vector<Operand> writes) {
  Op op = make_op(OpKind::kKernel, std::move(reads), std::move(writes));
  op.kernel = &kTouch;
  return op;
}
inline Op call_op(const std::string& name, std::vector<Operand> reads,
                  std::vector<Operand> writes) {
  Op op = make_op(OpKind::kKernel, std::move(reads), std::move(writes));
  op.kernel = &kCall;
  op.attributes = {name};
  return op;
}
/// Costs nothing beside touching its operands.
inline Op work_op(const Kernel& kernel, const Index& block, std::vector<Operand> reads,
                  std::vector<Operand> writes) {
  Op op = make_op(OpKind::kKernel, std::move(reads), std::move(writes));
  op.kernel = &kernel;
  op.attributes = {block, IntegerRange{}, Index{}, 0.0, 0.0, int64_t{0}};
  return op;
}
inline Op load_op(const Index& micro_batch, std::vector<Operand> writes) {
  Op op = make_op(OpKind::kKernel, {}, std::move(writes));
  op.kernel = &kLoad;
  op.attributes = {micro_batch};
  return op;
}

}  // namespace strait::program
