// Who executes the kernels of a program. The table is filled by whoever composes a rank
// (strait/execute for training); the interpreter asks it once per operation.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "strait/program/program.h"

namespace strait::runtime {

/// One operand of an executed op.
struct Bound {
  int slot = 0;
  program::Access access = program::Access::kRead;
  int array = 0;
  int64_t index = 0;
  int64_t bytes = 0;
  void* data = nullptr;
};

/// One executed kernel, as its executor sees it. Nothing else of the rank's values may be touched.
struct Instance {
  const program::Program* program = nullptr;
  const program::Op* op = nullptr;
  const program::Loops* loops = nullptr;
  int64_t step = 0;
  int64_t rank = 0;
  void* workspace = nullptr;  // of the op's cost
  std::vector<Bound> reads;
  std::vector<Bound> writes;

  /// The first operand in a slot, or nullptr.
  const Bound* find_read(int slot) const { return find(reads, slot); }
  const Bound* find_write(int slot) const { return find(writes, slot); }
  /// Its data, or nullptr.
  void* read(int slot) const { return data(reads, slot); }
  void* write(int slot) const { return data(writes, slot); }
  /// An index attribute under the loop variables; attributes of the other types.
  int64_t index(int attribute) const {
    return program::evaluate(program::attribute<program::Index>(*op, attribute), *loops);
  }
  int64_t integer(int attribute) const { return program::attribute<int64_t>(*op, attribute); }
  const program::ValueArray& array(const Bound& operand) const {
    return program->arrays[operand.array];
  }

 private:
  static const Bound* find(const std::vector<Bound>& operands, int slot) {
    for (const Bound& operand : operands)
      if (operand.slot == slot) return &operand;
    return nullptr;
  }
  static void* data(const std::vector<Bound>& operands, int slot) {
    const Bound* operand = find(operands, slot);
    return operand == nullptr ? nullptr : operand->data;
  }
};

/// Executes one operation of a program as often as it comes up. Keeps nothing from one execution to
/// the next: all that passes between operations is in their operands.
using Execute = std::function<void(const Instance&)>;
/// Makes it, once per operation of a program that is written (not per execution).
using MakeExecute = std::function<Execute(const program::Program&, const program::Op&)>;

/// The executors of one rank, by kernel.
class Executors {
 public:
  /// Replaces the one that the kernel had.
  void add(const program::Kernel& kernel, MakeExecute make) { makers_[&kernel] = std::move(make); }
  /// For executors that need nothing of the op in advance.
  void add(const program::Kernel& kernel, Execute execute);
  /// InternalError naming the kernel when nobody executes it.
  Execute make(const program::Program& program, const program::Op& op) const;
  /// Called once before each execution of a kernel: for tests that look or strike.
  void set_before(std::function<void(const Instance&)> before) { before_ = std::move(before); }
  void before(const Instance& instance) const {
    if (before_) before_(instance);
  }

 private:
  std::unordered_map<const program::Kernel*, MakeExecute> makers_;
  std::function<void(const Instance&)> before_;
};

}  // namespace strait::runtime
