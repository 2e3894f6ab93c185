// Splits a count over OpenMP threads. Kernels work on ranges and know no threads.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

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
#pragma omp parallel num_threads(static_cast <int>(std::min <int64_t>(threads, units)))
  {
    const int64_t team = omp_get_num_threads(), index = omp_get_thread_num();
    const int64_t begin = std::min(count, units * index / team * unit);
    const int64_t end = std::min(count, units * (index + 1) / team * unit);
    if (begin < end) function(begin, end);
  }
}

}  // namespace strait::kernel
