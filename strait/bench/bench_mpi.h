// A collective among MPI processes, beside MPI's own and Gloo's, all of them interleaved in one
// run.
#pragma once

#include "strait/bench/bench.h"
#include "strait/comm/mpi/mpi_world.h"
#include "strait/measure/collective_run.h"

namespace strait::measure {

/// All ranks call it; the row counts on rank 0. Ours takes its buffers from the window, as training
/// does; the peers have ordinary memory of their own. A time is that of the slowest rank, from a
/// barrier on, the mean of several in a row for short ones. Bound "memory-copy" as
/// bench_collective's; across hosts there is none. Peers "open-mpi" and, where this program was
/// built with it, "gloo" (through c10d; it has no reduce-scatter and is timed with the all-reduce
/// that its users take instead).
BenchRow bench_collective_mpi(const CollectiveCase& collective, comm::MpiSession& session,
                              const TimingOptions& options = {});

}  // namespace strait::measure
