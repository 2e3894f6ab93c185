// The collective operation that a program's op kind stands for.
#pragma once

#include "strait/collective/schedule.h"
#include "strait/program/program.h"

namespace strait::collective {

/// InternalError unless the kind is a communication.
Operation operation_of(program::OpKind kind);

}  // namespace strait::collective
