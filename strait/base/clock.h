// Monotonic time in seconds, and deadlines.
#pragma once

#include <chrono>

namespace strait {

using SteadyTime = std::chrono::steady_clock::time_point;

/// Seconds on a monotonic clock with an arbitrary origin.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The moment `seconds` from now.
inline SteadyTime deadline_after(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

}  // namespace strait
