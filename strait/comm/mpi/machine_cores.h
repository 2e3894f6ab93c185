// Which cores the ranks of a machine may use, as their launcher started them.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "strait/comm/mpi/mpi_world.h"

namespace strait::comm {

struct MachineCores {
  /// Logical processors of each rank that runs under this rank's kernel, by rank: several host
  /// names may be one machine, which has its cores once.
  std::map<int64_t, std::vector<int>> usable;
  int64_t cores = 1;     // that they may use together, quotas as cores_together counts them
  int64_t per_rank = 1;  // that every rank of the world may count on
};

/// Collective.
MachineCores find_machine_cores(MpiSession& session);

}  // namespace strait::comm
