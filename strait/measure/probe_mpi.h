// What the computers of an MPI job can do: every rank at once, and every level of links on its own.
#pragma once

#include "strait/comm/mpi/mpi_world.h"
#include "strait/measure/probe.h"

namespace strait::measure {

/// As probe(), but ranks are the processes of `session`. Levels: "node", the ranks of a host, when there are
/// several hosts of equally many ranks, and "world". A level is measured with all of its groups active at once, by
/// all-gathers: of the ranks of each host; of the ranks in the same place of all hosts. Its rate is what enters
/// one group of the level below (a rank, a host). Collective; equal on all ranks; makes the session's world.
/// UserError when hosts have unequal numbers of ranks or are not contiguous in rank order.
ProbeResult probe_mpi(comm::MpiSession& session, const ProbeOptions& options = {});

}  // namespace strait::measure
