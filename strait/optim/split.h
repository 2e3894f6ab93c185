// Fixed chunks of a span, shared out to the threads of a team.
#pragma once

#include <algorithm>
#include <cstdint>

#include "strait/threads/team.h"

namespace strait::optim {

/// Elements of a chunk of an element-wise update: 64 KiB of float per buffer, a few per
/// second-level cache.
inline constexpr int64_t kUpdateChunkElements = 16384;

/// Calls body(begin, end) for every chunk of [0, elements), on at most `threads` (>= 1) threads,
/// each of which gets a contiguous run of chunks. `body` must not throw.
template <class Body>
void for_each_chunk(int64_t elements, int64_t chunk_elements, int threads, const Body& body) {
  const int64_t chunks = (elements + chunk_elements - 1) / chunk_elements;
  const int64_t used = std::clamp<int64_t>(threads, 1, std::max<int64_t>(chunks, 1));
  run_team(static_cast<int>(used), [&](int64_t index, int64_t team) {
    for (int64_t chunk = chunks * index / team; chunk < chunks * (index + 1) / team; ++chunk) {
      const int64_t begin = chunk * chunk_elements;
      body(begin, std::min(begin + chunk_elements, elements));
    }
  });
}

}  // namespace strait::optim
