// What a rank executes in one step, in order and by name: where a fault may strike.
#pragma once

#include <string>
#include <vector>

#include "strait/program/operation_text.h"
#include "strait/program/program.h"

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

}  // namespace strait::test
