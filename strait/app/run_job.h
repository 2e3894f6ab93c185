// A training run as a command: what is printed and reported, whatever its ranks are.
#pragma once

#include <functional>

#include "strait/app/commands.h"
#include "strait/comm/launch.h"
#include "strait/train/train.h"

namespace strait::app {

/// Runs all ranks, or this one; returns the signal that asked to stop, or 0.
using RunRanks = std::function<int(const train::Observer&, train::Outcome&, const train::Hooks&)>;

/// Prints the plan, the progress and the summary; returns the members of the report. What is known
/// so far is in `output.partial()` when it throws. `hooks.stuck` is its own.
Json run_job(const Job& job, cli::Output& output, train::Hooks hooks, const RunRanks& run_ranks);

/// One rank of an MPI job. UserError when this program was built without MPI.
Json train_on_processes(const cli::Command& command, const comm::Launch& launch,
                        cli::Output& output, train::Hooks hooks);

}  // namespace strait::app
