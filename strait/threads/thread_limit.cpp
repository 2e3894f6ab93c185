#include "strait/threads/thread_limit.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

namespace strait {
namespace {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

/// A number in a file of the kernel; kNone where it holds none ("max").
int64_t number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number && number > 0 ? number : kNone;
}

/// Of a resource; kNone when it is not limited.
int64_t resource_limit(decltype(RLIMIT_AS) resource) {
  struct rlimit limit {};
  const bool limited = ::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? static_cast<int64_t>(limit.rlim_cur) : kNone;
}

/// Of the address space of this process, in bytes.
int64_t mapped_bytes() {
  const int64_t pages = number_in("/proc/self/statm");
  return pages == kNone ? 0 : pages * ::sysconf(_SC_PAGESIZE);
}

int64_t stack_bytes() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (::pthread_getattr_default_np(&attributes) != 0) return 8 << 20;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return static_cast<int64_t>(bytes);
}

/// Besides stacks, glibc reserves up to 8 arenas of 64 MiB per core.
int64_t threads_in_address_space() {
  const int64_t limit = resource_limit(RLIMIT_AS);
  if (limit == kNone) return kNone;
  const int64_t arenas = 8 * ::sysconf(_SC_NPROCESSORS_ONLN) * (int64_t{64} << 20);
  return std::max<int64_t>(0, limit - mapped_bytes() - arenas) / stack_bytes();
}

int64_t threads_of_user() {
  // The kernel does not hold the superuser to it.
  return ::geteuid() == 0 ? kNone : resource_limit(RLIMIT_NPROC);
}

int64_t threads_in_mapped_regions() {
  constexpr int64_t kRegions = 3;  // stack, its guard, a part of an arena
  const int64_t regions = number_in("/proc/sys/vm/max_map_count");
  return regions == kNone ? kNone : regions / kRegions;
}

}  // namespace

ThreadLimit thread_limit() {
  const ThreadLimit limits[] = {
      {threads_of_user(), "processes per user (ulimit -u)"},
      {threads_in_address_space(), "address space (ulimit -v)"},
      {threads_in_mapped_regions(), "mapped regions (vm.max_map_count)"},
      {number_in("/sys/fs/cgroup/pids.max"), "processes of the control group (pids.max)"},
      {number_in("/proc/sys/kernel/threads-max"), "threads of the system (kernel.threads-max)"}};
  return *std::min_element(
      std::begin(limits), std::end(limits),
      [](const ThreadLimit& a, const ThreadLimit& b) { return a.threads < b.threads; });
}

}  // namespace strait
