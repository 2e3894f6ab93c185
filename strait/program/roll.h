// Turns straight-line operations into repeats and back. Builders write blocks and micro-batches one
// after another with plain indices; `roll` finds the repetition, so the size of a program grows
// with neither.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// Replaces runs of equal bodies by `Repeat`. Two nodes are equal when they differ only in plain
/// index constants (operands, attributes, peer); along a run each constant advances by its own
/// fixed difference. An index that uses one loop already may take the new one as its second;
/// indices that use two must be equal in all repetitions and stay. Nodes that are repeats take part
/// like operations. The result has the fewest operations that repeats which are not nested in each
/// other can give, a repeat counted as one more. The loop variable is the first index attribute of
/// a kernel that advances, where all differences allow it, otherwise 0, 1, ... New loops get ids
/// from `next_loop` on (advanced) and the name `variable`. unroll(roll(nodes)) is nodes. Cost: O(n
/// * min(n / 2, kMaxPeriod)) comparisons of integers.
/// `arrays`: of the program; joined values are named one by one, so their indices must be equal
/// too.
std::vector<Node> roll(std::vector<Node> nodes, int& next_loop, const std::string& variable,
                       std::span<const ValueArray> arrays = {});
inline constexpr int64_t kMaxPeriod = 1024;

/// The same operations without any repeat: indices evaluated, `num_loops` 0.
Program unroll(const Program& program);

}  // namespace strait::program
