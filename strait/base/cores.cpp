#include "strait/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace strait {

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

int64_t available_cores() { return static_cast<int64_t>(usable_cores().size()); }

}  // namespace strait
