// Splits a count over the threads of a team. Kernels work on ranges and know no threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "strait/threads/team.h"

namespace strait::kernel {

/// Calls function(begin, end) for consecutive ranges that cover [0, count), their borders at
/// multiples of `unit`, each on its own thread. `function` must not throw. Blocks until all are
/// done.
template <class Function>
void parallel_ranges(int64_t count, int64_t unit, int threads, const Function& function) {
  const int64_t units = (count + unit - 1) / unit;
  if (threads <= 1 || units <= 1) {
    if (count > 0) function(int64_t{0}, count);
    return;
  }
  run_team(static_cast<int>(std::min<int64_t>(threads, units)), [&](int64_t index, int64_t team) {
    const int64_t begin = std::min(count, units * index / team * unit);
    const int64_t end = std::min(count, units * (index + 1) / team * unit);
    if (begin < end) function(begin, end);
  });
}

}  // namespace strait::kernel
