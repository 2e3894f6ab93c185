#ifdef STRAIT_MPI

#include "strait/comm/mpi/machine_cores.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <string>

#include "strait/comm/launch.h"
#include "strait/threads/core_quota.h"
#include "strait/threads/cores.h"

namespace strait::comm {
namespace {

std::string machine_id(const MpiSession& session) {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  file >> id;
  return id.empty() ? session.host_names()[static_cast<size_t>(session.rank())] : id;
}

}  // namespace

MachineCores find_machine_cores(MpiSession& session) {
  MachineCores found;
  const std::string here = machine_id(session);
  const CoreQuota quota = core_quota();
  std::string own =
      fmt::format("{} {} {}", here, quota.cores, quota.group.empty() ? "-" : quota.group);
  for (const int core : usable_cores()) own += fmt::format(" {}", core);
  const std::vector<std::string> all = session.exchange(own);
  std::vector<CoreShare> ranks, neighbours;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    CoreShare share;
    std::istringstream words(all[rank]);
    std::string allowed;  // streams do not read "inf"
    words >> share.machine >> allowed >> share.quota.group;
    share.quota.cores = std::stod(allowed);
    for (int core = 0; words >> core;) share.cores.push_back(core);
    if (share.machine == here) {
      found.usable[static_cast<int64_t>(rank)] = share.cores;
      neighbours.push_back(share);
    }
    ranks.push_back(std::move(share));
  }
  found.cores = cores_together(neighbours);
  found.per_rank = cores_per_rank(ranks);
  return found;
}

}  // namespace strait::comm

#endif  // STRAIT_MPI
