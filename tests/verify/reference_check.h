// The rules of programs written down again, plainly and slowly: every rank by itself, every pair of
// operations, no slots, clocks, classes of ranks or symmetry. The verifier and the tracker must
// agree.
#pragma once

#include <string>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// One rank's executed operations and which of them must have ended before which may start.
struct ReferenceOrder {
  std::vector<Op> ops;                    // indices evaluated
  std::vector<std::vector<char>> before;  // [i][j]: i has ended when j starts (closure), i < j
};
ReferenceOrder reference_order(const Program& program);

/// True when `op` names the value as read, written or freed.
bool touches(const Op& op, int array, int64_t index);

/// "" when the programs are legal, else why not. Covers what deleting, doubling and moving
/// operations of well-formed programs can break. Cost: O(ranks * instances^2) and more.
std::string reference_check(const std::vector<Program>& classes);

}  // namespace strait::program
