// Table entries of what passes between stages in fewer bytes. No LibTorch; executors stand in
// strait/execute.
#pragma once

#include "strait/program/program.h"

namespace strait::strategy {

/// All numbers of a value into one piece of the op's codec, and back. Encoding adds those that are
/// not finite to "agreed".
extern const program::Kernel kEncodeActivation;
extern const program::Kernel kDecodeActivation;
enum ActivationOperand : int { kActivationFrom, kActivationTo, kActivationAgreed };

}  // namespace strait::strategy
