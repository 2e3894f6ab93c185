// The time that deadlines count.
#pragma once

#include <mutex>

#include "strait/base/clock.h"

namespace strait {

/// Steady time that stands still while the whole process does: stopped by a signal, suspended with
/// its machine. Whoever waits looks at it at least every kLookSeconds, so a gap of kGapSeconds
/// between two looks of a process is such a time, or one in which nobody waited. Thread-safe.
class WaitClock {
 public:
  static constexpr double kLookSeconds = 0.25, kGapSeconds = 1.0;

  SteadyTime now() {
    const std::lock_guard<std::mutex> lock(mutex_);
    const SteadyTime time = std::chrono::steady_clock::now();
    if (time - looked_ > std::chrono::duration<double>(kGapSeconds)) stood_ += time - looked_;
    looked_ = time;
    return time - stood_;
  }
  /// When steady time is where `time` of this clock is, unless it stands still before.
  SteadyTime steady(SteadyTime time) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return time + stood_;
  }
  double seconds() { return std::chrono::duration<double>(now().time_since_epoch()).count(); }
  SteadyTime deadline_after(double seconds) {
    return now() +
           std::chrono::duration_cast<SteadyTime::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  std::mutex mutex_;
  SteadyTime looked_ = std::chrono::steady_clock::now();
  SteadyTime::duration stood_{};
};

}  // namespace strait
