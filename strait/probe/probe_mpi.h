// What the computers of an MPI job can do: every rank at once, and every level of links on its own.
#pragma once

#include "strait/comm/mpi/mpi_world.h"
#include "strait/probe/probe.h"

namespace strait::measure {

/// As probe(), but ranks are the processes of `session`, and each keeps to its cores as in training
/// with runtime.bind = "auto". Levels: what some ranks of a host share and others do not ("l3",
/// "numa", "socket"), when they keep to cores and all hosts are alike; "node", the ranks of a host,
/// when there are several hosts; and "world". Of two levels inside a host that are about equally
/// fast only the outer one is told. A level is measured with all of its groups active at once, by
/// all-gathers of the ranks in the same place of the groups below. Its rate is what enters one
/// group of the level below (a rank, a host). Collective; equal on all ranks; makes the session's
/// world. UserError when hosts have unequal numbers of ranks or are not contiguous in rank order.
ProbeResult probe_mpi(comm::MpiSession& session, const ProbeOptions& options = {});

/// Without the levels inside a host, the first `inside` of them, that bring a rank less than 1.25
/// times what the level around them does: that one takes their place.
std::vector<Level> worth_telling(std::vector<Level> levels, size_t inside);

}  // namespace strait::measure
