// Signals that ask a run to save and stop.
#pragma once

#include <atomic>
#include <string>

namespace strait::app {

/// While it lives, SIGTERM, SIGUSR1, SIGUSR2 and SIGINT set `received()` instead of ending the process; a
/// second SIGINT ends it at once. One at a time per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// Number of the signal that came, 0 = none.
  const std::atomic<int>& received() const;
};

/// "SIGTERM", ...
std::string signal_name(int number);

}  // namespace strait::app
