#include "strait/threads/cores.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "strait/base/errors.h"
#include "strait/threads/core_quota.h"

namespace strait {
namespace {

// A property of the calling thread, as its binding in the kernel is.
thread_local std::vector<int> before_binding;

/// 0 or the kernel's error.
int bind_thread(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores)
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &set);
  return ::sched_setaffinity(0, sizeof(set), &set) == 0 ? 0 : errno;
}

}  // namespace

std::vector<int> usable_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  const int all = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (int core = 0; cores.empty() && core < all; ++core) cores.push_back(core);
  return cores;
}

int64_t available_cores() {
  const auto bound = static_cast<double>(usable_cores().size());
  return std::max<int64_t>(1, static_cast<int64_t>(std::min(bound, core_quota().cores)));
}

std::string core_ranges(const std::vector<int>& cores) {
  std::string text;
  for (size_t first = 0, last = 0; first < cores.size(); first = ++last) {
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(cores[first]);
    if (last > first) text += "-" + std::to_string(cores[last]);
  }
  return text.empty() ? "none" : text;
}

void take_short_turns() noexcept {
  // As the kernel has it; the C library knows neither the structure nor the call.
  struct Attributes {
    uint32_t size = sizeof(Attributes), policy = SCHED_OTHER;
    uint64_t flags = 0;
    int32_t nice = 0;
    uint32_t priority = 0;
    uint64_t runtime = 0, deadline = 0, period = 0;
  } attributes;
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;
  attributes.runtime = 100'000;  // nanoseconds; the least there is
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

CoreBinding::CoreBinding(const std::vector<int>& cores) {
  if (cores.empty()) return;
  ensure(before_binding.empty(), "CoreBinding: this thread is bound already");
  std::vector<int> former = usable_cores();
  if (const int error = bind_thread(cores); error != 0) {
    ErrorPlace place;
    place.key = "runtime.bind";
    throw UserError("cannot bind a rank to the cores " + core_ranges(cores) + " (" +
                        std::strerror(error) + "); the nearest valid choice is \"none\"",
                    place);
  }
  before_binding = std::move(former);
  bound_ = true;
}

CoreBinding::~CoreBinding() {
  if (!bound_) return;
  run_on(before_binding);
  before_binding.clear();
}

std::vector<int> cores_before_binding() { return before_binding; }

void run_on(const std::vector<int>& cores) noexcept {
  if (!cores.empty()) bind_thread(cores);
}

}  // namespace strait
