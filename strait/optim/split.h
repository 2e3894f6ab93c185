// Fixed chunks of a span, shared out to the threads of a team.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "strait/threads/team.h"

namespace strait::optim {

/// Elements of a chunk of an element-wise update: 64 KiB of float per buffer, a few per
/// second-level cache.
inline constexpr int64_t kUpdateChunkElements = 16384;

/// Number of threads for `chunks` pieces of work; see adamw_update for `threads`.
inline int thread_count(int threads, int64_t chunks) {
  const int limit = omp_get_max_threads();
  const int wanted = threads <= 0 ? limit : std::min(threads, limit);
  return static_cast<int>(std::clamp<int64_t>(chunks, 1, wanted));
}

/// Calls body(begin, end) for every chunk of [0, elements). Each thread gets a contiguous run of
/// chunks. `body` must not throw.
template <class Body>
void for_each_chunk(int64_t elements, int64_t chunk_elements, int threads, const Body& body) {
  const int64_t chunks = (elements + chunk_elements - 1) / chunk_elements;
  const int used = thread_count(threads, chunks);
  run_team(used, [&](int64_t index, int64_t team) {
    for (int64_t chunk = chunks * index / team; chunk < chunks * (index + 1) / team; ++chunk) {
      const int64_t begin = chunk * chunk_elements;
      body(begin, std::min(begin + chunk_elements, elements));
    }
  });
}

}  // namespace strait::optim
