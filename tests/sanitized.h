// What tests adapt to sanitizers and debug builds: how often they repeat, and how long they may
// take. Release builds hold the full numbers. Skipped under sanitizers are only limits of memory in
// tests/app/limits_test.cpp, because a sanitizer takes address space and refuses memory itself.
#pragma once

#include <cstdint>

namespace strait::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

/// How often to repeat: `full`, or under a sanitizer the smaller `sanitized`. For repetitions that
/// differ only in their seed and would take many minutes there.
constexpr int64_t repetitions(int64_t full, int64_t sanitized) {
  return kSanitized ? sanitized : full;
}

/// Times slower than release that code may be: ThreadSanitizer alone costs 5 to 15 times (its
/// manual), and its builds and `dev` are -O1.
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
inline constexpr double kSlowdown = 1;
#else
inline constexpr double kSlowdown = 50;
#endif

}  // namespace strait::test
