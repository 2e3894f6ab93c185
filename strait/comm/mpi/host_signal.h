// Signal (strait/comm/signal.h) between processes: lies in shared memory, blocks on a futex.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace strait::comm {

/// Zero-filled memory is a signal. Whoever changes a condition calls notify() afterwards; whoever
/// waits brackets the look at the condition and the sleep with enter() and leave(). A process that
/// dies in between costs the others needless system calls, nothing else.
struct HostSignal {
  std::atomic<uint32_t> epoch;
  std::atomic<uint32_t> sleepers;

  /// Cost: one atomic operation when nobody sleeps.
  void notify() {
    if (sleepers.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    epoch.fetch_add(1, std::memory_order_acq_rel);
    ::syscall(SYS_futex, &epoch, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  /// Returns what sleep() wants; look at the condition after it.
  uint32_t enter() {
    sleepers.fetch_add(1, std::memory_order_acq_rel);
    return epoch.load(std::memory_order_acquire);
  }
  void leave() { sleepers.fetch_sub(1, std::memory_order_acq_rel); }
  /// Sleeps until notify(), at most `seconds`.
  void sleep(uint32_t seen, double seconds) {
    const auto whole = static_cast<time_t>(seconds);
    const timespec limit{whole, static_cast<long>((seconds - static_cast<double>(whole)) * 1e9)};
    ::syscall(SYS_futex, &epoch, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

}  // namespace strait::comm
