// strait bench collective --backend mpi: starts mpirun, or is one of its ranks.
#pragma once

#include <functional>

#include "strait/cli/run_command.h"
#include "strait/measure/bench.h"
#include "strait/measure/collective_run.h"

namespace strait::app {

/// Under a launcher: this rank's part, printed by rank 0 through `print`. Otherwise starts as many ranks on this
/// host and returns their report. UserError when this program was built without MPI or mpirun fails.
Json bench_processes(const cli::Command& command, const measure::CollectiveCase& collective,
                     cli::Output& output,
                     const std::function<void(const measure::BenchRow&, cli::Output&)>& print);

}  // namespace strait::app
