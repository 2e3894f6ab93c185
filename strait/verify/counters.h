// What the counters do to programs. Indices that use a counter are periodic in it, so a program is
// legal at every step and in every round when it is legal during one period.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// Steps and rounds after which the indices of programs come back to where they were.
struct CounterPeriod {
  int64_t steps = 1, rounds = 1;
  bool operator==(const CounterPeriod&) const = default;
};

/// The period of all operands, waits and peers. They must have passed check_structure: what uses a
/// counter has a modulo. Saturates above kMostPeriod.
CounterPeriod counter_period(const std::vector<Program>& classes);
inline constexpr int64_t kMostPeriod = 4096;

/// The same programs as they run while the counters have these values: no index uses a counter.
std::vector<Program> at_counters(const std::vector<Program>& classes, const Counters& counters);

}  // namespace strait::program
