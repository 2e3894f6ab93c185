// The pass that starts early what can: operations written behind the backward pass move to where
// nothing that they need is still to come.
#pragma once

#include <cstddef>

#include "strait/program/program.h"

namespace strait::strategy {

/// Moves the nodes of the body from number `tail` on, each to right behind the last operation of
/// the last micro-step that it must follow. Those which nothing separates keep their order. A
/// kernel that reads what a transfer of the micro-step brings goes behind the start of the second
/// transfer after that one on its stream, as reductions of gradients wait for each other; one that
/// reads what a transfer of the tail brings stays where it was. Values, and so results, are the
/// same: only operations that touch different ones change places. Micro-steps in a loop of their
/// own stay. Cost: O(operations of the last micro-step, unrolled).
void hoist(program::Program& program, size_t tail);

}  // namespace strait::strategy
