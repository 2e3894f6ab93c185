#include "strait/runtime/executors.h"

#include "strait/base/errors.h"

namespace strait::runtime {

void Executors::add(const program::Kernel& kernel, Execute execute) {
  makers_[&kernel] = [execute = std::move(execute)](const program::Program&, const program::Op&) {
    return execute;
  };
}

Execute Executors::make(const program::Program& program, const program::Op& op) const {
  const auto found = makers_.find(op.kernel);
  if (found == makers_.end())
    throw InternalError("no executor for the op " + program::print_op(program, op));
  return found->second(program, op);
}

}  // namespace strait::runtime
