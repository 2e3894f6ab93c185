// Signals that ask a run to save and stop, and those that ask for its flight records.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace strait::app {

/// Blocks the signals of StopSignals in this thread and those that it starts, so that one which
/// comes while a process still loads waits for whoever takes it. Safe before main.
void hold_stop_signals();
/// Unblocks them in this thread: what has come is delivered.
void release_stop_signals();

/// While it lives, SIGTERM, SIGUSR1, SIGUSR2 and SIGINT set `received()` instead of ending the
/// process, also those that were held before; a second SIGINT ends it at once. Afterwards the first
/// three are ignored: the process is about to end by itself, with its own exit code. One at a time
/// per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// Number of the signal that came, 0 = none.
  const std::atomic<int>& received() const;
};

/// While it lives, SIGQUIT writes the flight records and the run goes on; a crash (SIGSEGV, SIGBUS,
/// SIGFPE, SIGILL, SIGABRT) writes them and then ends the process as it would have. The writing is
/// done by a thread of its own, because almost nothing is allowed in a handler; a crash waits two
/// seconds for it at most. One at a time per process.
class DumpSignals {
 public:
  DumpSignals();
  ~DumpSignals();
  DumpSignals(const DumpSignals&) = delete;
  DumpSignals& operator=(const DumpSignals&) = delete;
  /// What writes the records: given "request" or "crash". An empty one does nothing; returns when
  /// no earlier one runs any more.
  void set(std::function<void(const std::string& kind)> dump);

 private:
  void work();

  std::mutex mutex_;  // guards dump_, and is held while it runs
  std::function<void(const std::string&)> dump_;
  std::thread worker_;
};

/// Ends the process as the signal would have that a StopSignals, gone by now, has received.
[[noreturn]] void end_by(int number);

/// "SIGTERM", ...
std::string signal_name(int number);

}  // namespace strait::app
