// The indices of an operation, wherever they stand in it.
#pragma once

#include "strait/program/program.h"

namespace strait::program {

/// Calls visit on every index of an operation, operands first.
template <class AnyOp, class Visit>
void visit_indices(AnyOp& op, Visit&& visit) {
  for (auto& operand : op.reads) visit(operand.index);
  for (auto& operand : op.writes) visit(operand.index);
  for (auto& operand : op.waits) visit(operand.index);
  for (auto& attribute : op.attributes)
    if (auto* index = std::get_if<Index>(&attribute)) visit(*index);
  visit(op.peer);
}

}  // namespace strait::program
