// Wakes threads that wait for a condition: they spin briefly, then block.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "strait/base/wait_clock.h"

namespace strait::comm {

/// Thread-safe. The condition may read anything that is atomic or guarded by its own mutex; whoever
/// changes it calls notify() afterwards.
class Signal {
 public:
  explicit Signal(double spin_seconds) : spin_seconds_(spin_seconds) {}

  /// Cost: one atomic operation when nobody blocks.
  void notify() {
    // A read-modify-write on `sleepers_` orders this thread and a waiter: either we see the waiter,
    // or the waiter's own increment comes later and makes it see the changed condition.
    if (sleepers_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    { const std::lock_guard<std::mutex> lock(mutex_); }
    changed_.notify_all();
  }

  /// Blocks until ready() is true or the deadline passes; returns ready()'s last value.
  template <class Ready>
  bool wait(const Ready& ready, SteadyTime deadline) {
    if (ready() || spin(ready, deadline)) return true;
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_acq_rel);
    const bool result = changed_.wait_until(lock, deadline, ready);
    sleepers_.fetch_sub(1, std::memory_order_acq_rel);
    return result;
  }

  /// The same for a deadline on `clock`; without one, SteadyTime::max(), nobody looks at it.
  template <class Ready>
  bool wait(const Ready& ready, WaitClock& clock, SteadyTime deadline) {
    if (deadline == SteadyTime::max()) return wait(ready, deadline);
    while (clock.now() < deadline)
      if (wait(ready, std::min(clock.steady(deadline), deadline_after(WaitClock::kLookSeconds))))
        return true;
    return ready();
  }

 private:
  template <class Ready>
  bool spin(const Ready& ready, SteadyTime deadline) const {
    if (spin_seconds_ <= 0.0) return false;
    const SteadyTime end = std::min(deadline, deadline_after(spin_seconds_));
    while (std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < 16; ++i)
        if (ready()) return true;
      std::this_thread::yield();
    }
    return false;
  }

  const double spin_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> sleepers_{0};
};

}  // namespace strait::comm
