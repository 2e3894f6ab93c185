#include "strait/draft/draft.h"

#include <utility>

#include "strait/base/errors.h"
#include "strait/program/roll.h"

namespace strait::draft {

int find_array(const program::Program& program, const std::string& name) {
  for (size_t i = 0; i < program.arrays.size(); ++i)
    if (program.arrays[i].name == name) return static_cast<int>(i);
  throw InternalError("program has no value named " + name);
}

int declare(program::Program& program, const WholeValues& values) {
  program::ValueArray array;
  array.name = values.name;
  array.count = values.count;
  array.dtype = values.dtype;
  array.partition = {values.elements, values.elements};
  array.lifetime = values.lifetime;
  array.category = values.category;
  array.tier = values.tier;
  program.arrays.push_back(std::move(array));
  return static_cast<int>(program.arrays.size()) - 1;
}

program::Op kernel_op(const program::Kernel& kernel) {
  program::Op op;
  op.kind = program::OpKind::kKernel;
  op.kernel = &kernel;
  return op;
}

program::Op free_op(const program::Operand& operand) {
  program::Op op;
  op.kind = program::OpKind::kFree;
  op.writes = {program::as(operand, program::Access::kWrite)};
  return op;
}

void append_rolled(program::Program& program, std::vector<program::Node> nodes,
                   const char* variable) {
  for (program::Node& node : program::roll(std::move(nodes), program.num_loops, variable))
    program.body.push_back(std::move(node));
}

}  // namespace strait::draft
