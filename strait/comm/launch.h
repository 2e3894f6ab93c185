// What a launcher (mpirun, srun) tells a process through its environment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strait/threads/core_quota.h"

namespace strait::comm {

struct Launch {
  std::string launcher;       // "Open MPI", "PMI", "Slurm"; "" = none
  std::string size_variable;  // where `size` was read
  int64_t rank = 0, size = 1;
  int64_t hosts = 1;  // the same on all ranks; 1 where the launcher does not tell
  bool launched() const { return !launcher.empty(); }
};

/// Value of an environment variable, or null.
using Lookup = std::function<const char*(const char* name)>;

/// The first of: OMPI_COMM_WORLD_RANK and _SIZE; PMI_RANK and PMI_SIZE; SLURM_PROCID and
/// SLURM_NTASKS inside a step (SLURM_STEP_ID), as srun sets them; hosts from
/// OMPI_MCA_orte_num_nodes or SLURM_NNODES. UserError naming the variable when it is no number or
/// the rank is not below the size.
Launch find_launch(const Lookup& lookup);
/// In the environment of this process.
Launch find_launch();

/// What one process may use of its machine.
struct CoreShare {
  std::string machine;     // a kernel: several host names may be one, as containers are
  std::vector<int> cores;  // numbers
  CoreQuota quota;         // of all its ranks that name the same group
};

/// Cores that every rank may count on when those that may use the same ones, or share a quota, take
/// equal parts: the least over the ranks, at least 1.
int64_t cores_per_rank(const std::vector<CoreShare>& ranks);

/// Cores that the ranks of one machine may use together; at least 1. A rank with a quota of its own
/// has a core of its own, a slow one where the quota is less, if there are cores for all quotas.
int64_t cores_together(const std::vector<CoreShare>& ranks);

/// UserError when the launcher started another number of ranks than MPI joined: then this program
/// and the launcher do not speak the same protocol, and every process would train alone.
void check_launch(const Launch& launch, int64_t mpi_size);

}  // namespace strait::comm
