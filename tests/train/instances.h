// What a rank executes in one step, in order and by name: where a fault may strike.
#pragma once

#include <string>
#include <vector>

#include "strait/program/operation_text.h"
#include "strait/program/program.h"
#include "strait/runtime/executors.h"
#include "strait/strategy/compose/design.h"
#include "strait/strategy/finish/kernels.h"
#include "strait/strategy/sharding/kernels.h"

namespace strait::test {

/// One instance of the program: what it is called, and whether it is a transfer.
struct Instance {
  std::string text;
  bool transfer = false;
  bool alone = false;  // a transfer in a group of one, which nobody can miss
};

inline std::vector<Instance> instances_of(const program::Program& program) {
  std::vector<Instance> instances;
  program::for_each_instance(
      program, [&](const program::Op& op, const std::vector<int64_t>& loops) {
        if (op.kind == program::OpKind::kFree || op.kind == program::OpKind::kCopy) return;
        const trace::OperationText text = program::operation_text(program, op);
        const bool transfer = program::is_communication(op.kind);
        instances.push_back(
            {text.str(text.pick(loops)), transfer, transfer && program.groups[op.group].size == 1});
      });
  return instances;
}

/// A step of training, not an evaluation, nor what runs at the begin and the end.
inline bool trains(const runtime::Instance& instance) {
  const std::string& kind = instance.program->step_kind;
  return kind == strategy::kSteady || kind == strategy::kUnchanged;
}

/// An op that would notice a gradient, its first operand, that is not finite.
inline bool looks_at_a_gradient(const runtime::Instance& instance) {
  return instance.op->kernel == &strategy::kSquaredNormOf ||
         (instance.op->kernel == &strategy::kEncode &&
          instance.write(strategy::kEncodeAgreed) != nullptr);
}

}  // namespace strait::test
