// The verifier: proves that the programs of all rank classes, run together, are legal. No LibTorch.
#pragma once

#include <string>
#include <vector>

#include "strait/program/program_set.h"

namespace strait::program {

/// One reason why a set of programs is refused.
struct Problem {
  std::string kind;     // read-before-write | use-after-free | not-freed | double-free |
                        // concurrent-write | unmatched-message | collective-order | cycle | carry |
                        // out-of-range | malformed | group-members
  std::string op;       // text of the offending operation, with program, rank class and loop
  std::string other;    // the operation it conflicts with, or ""
  std::string message;  // full sentence, as DESIGN "what the verifier says when it refuses"
};

/// Checks the programs of all classes of one step. Every read is preceded by its write; no two
/// unordered operations touch a value when one writes it; transient values are freed exactly once,
/// after their last use, and no operation unordered with the free touches them; sends match
/// receives; every group runs the same collectives (kind, partition, dtype, codec) in the same
/// order on each lane; no cycle across ranks. Cost: O(instances of one program per class),
/// symmetric classes are checked on representative ranks.
std::vector<Problem> verify(const std::vector<Program>& classes);

/// The same for all kinds of a set; and carries match across kinds: what one leaves in flight has a
/// taker among those that may follow, and is taken once.
std::vector<Problem> verify(const ProgramSet& set);

/// Throw InternalError with the first problem's message unless the programs are legal.
void verify_or_throw(const std::vector<Program>& classes);
void verify_or_throw(const ProgramSet& set);
void throw_first(const std::vector<Problem>& problems);

}  // namespace strait::program
