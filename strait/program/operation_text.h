// The text of an operation with places for the indices of its loops, so that a record of millions
// of instances need not print them.
#pragma once

#include "strait/program/program.h"
#include "strait/trace/flight.h"

namespace strait::program {

/// What print_op says of `op` without its stream and waits. Loops beyond OperationText::kLoops are
/// named instead of evaluated.
trace::OperationText operation_text(const Program& program, const Op& op);

}  // namespace strait::program
