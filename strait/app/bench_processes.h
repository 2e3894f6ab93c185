// strait bench collective --backend mpi, which starts mpirun or is one of its ranks, and strait
// probe as a rank.
#pragma once

#include <functional>
#include <string>

#include "strait/bench/bench.h"
#include "strait/cli/run_command.h"
#include "strait/measure/collective_run.h"
#include "strait/probe/probe.h"

namespace strait::app {

/// Under a launcher: this rank's part, printed by rank 0 through `print`. Otherwise starts as many
/// ranks on this host and returns their report. UserError when this program was built without MPI
/// or mpirun fails.
Json bench_processes(const cli::Command& command, const measure::CollectiveCase& collective,
                     cli::Output& output,
                     const std::function<void(const measure::BenchRow&, cli::Output&)>& print);

/// Measures the thread ranks of this process or, under mpirun or srun, all processes; sets `lead`
/// to whether this one reports, in `file`, whose folder must be there.
measure::ProbeResult probe_ranks(const measure::ProbeOptions& options, const std::string& file,
                                 cli::Output& output, bool& lead);

}  // namespace strait::app
