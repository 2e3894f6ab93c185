#include "strait/base/process_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t control_group_limit() {
  std::ifstream file("/sys/fs/cgroup/memory.max");
  int64_t limit = 0;  // "max" is no number
  return file >> limit && limit > 0 ? limit : kNoLimit;
}

int64_t limit_of(decltype(RLIMIT_AS) which) {
  struct rlimit limit {};
  const bool limited = ::getrlimit(which, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return limited ? static_cast<int64_t>(limit.rlim_cur) : kNoLimit;
}

}  // namespace

int64_t peak_resident_bytes() {
  struct rusage usage {};
  constexpr int64_t kKibibyte = 1024;  // the unit of ru_maxrss on Linux
  return ::getrusage(RUSAGE_SELF, &usage) == 0 ? int64_t{usage.ru_maxrss} * kKibibyte : 0;
}

int64_t physical_memory_bytes() {
  return int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

int64_t address_space_limit() { return limit_of(RLIMIT_AS); }

int64_t file_size_limit() { return limit_of(RLIMIT_FSIZE); }

int64_t usable_memory_bytes() {
  return std::min({physical_memory_bytes(), control_group_limit(), address_space_limit()});
}

void require_memory_bytes(const std::string& what, int64_t needs_bytes, int64_t has_bytes,
                          const std::string& hint) {
  if (needs_bytes <= has_bytes) return;
  constexpr double kGiga = 1e9;
  throw NothingFits(fmt::format("{} needs {:.4g} GB of memory and {:.4g} GB are there; {}", what,
                                static_cast<double>(needs_bytes) / kGiga,
                                static_cast<double>(has_bytes) / kGiga, hint));
}

}  // namespace strait
