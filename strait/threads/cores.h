// Which cores of its host this process may use, and threads that keep to some of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strait {

/// Numbers of the cores (logical processors) that the calling thread is bound to, ascending; all of
/// the host when nobody has bound it.
std::vector<int> usable_cores();
/// How many, or as many whole ones as core_quota() allows where that is less; at least 1.
int64_t available_cores();
/// "0-3,8" for {0, 1, 2, 3, 8}; ascending. "none" for no core.
std::string core_ranges(const std::vector<int>& cores);

/// While it lives the calling thread runs on these cores alone; none = wherever it could before.
/// Threads that it starts then inherit the binding (teams, with whatever they touch first),
/// except those that begin with run_on(cores_before_binding()). Bindings do not nest. UserError
/// when the system refuses the cores.
class CoreBinding {
 public:
  explicit CoreBinding(const std::vector<int>& cores);
  ~CoreBinding();
  CoreBinding(const CoreBinding&) = delete;
  CoreBinding& operator=(const CoreBinding&) = delete;

 private:
  bool bound_ = false;
};

/// Where the calling thread could run before its CoreBinding; empty when it has none. What a bound
/// thread hands to a thread that must not take the cores which compute.
std::vector<int> cores_before_binding();
/// Lets the calling thread, which moves bytes and otherwise sleeps, in front of those that compute
/// whenever it wakes, for at most a tenth of a millisecond at a time (Linux 6.12; before that it
/// takes turns of a few milliseconds with them). Its share of the processor stays the same.
void take_short_turns() noexcept;

/// Moves the calling thread to these cores; none, or cores that are there no longer: it stays as it
/// is.
void run_on(const std::vector<int>& cores) noexcept;

}  // namespace strait
