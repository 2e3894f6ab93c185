// The steps of a round as one program per rank class, for readers that ask what a step takes on the
// average. Runs execute the programs of the set, never this one.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/program/program_set.h"

namespace strait::strategy {

struct Round {
  /// Those steps of a round that have a border behind them or something under way, with their
  /// borders. Without borders the step itself.
  std::vector<program::Program> classes;
  int64_t steps = 1;       // of the round
  int64_t idle_steps = 0;  // of these not in `classes`: the step alone, with nothing under way
};

/// The round behind the first borders of a set, whose first kind is the step. What is under way at
/// both ends of it is a carry. Cost: O(operations of a step * steps that are not idle and differ).
Round round_of(const program::ProgramSet& set);

}  // namespace strait::strategy
