// The program from its arguments to its exit code, alone or as one rank of a launcher's job.
#pragma once

#include <string>
#include <vector>

#include "strait/cli/run_command.h"

namespace strait::app {

/// strait/cli's commands and those of strait/app.
cli::CommandTable all_commands();

/// Runs one command; returns the exit code. Under a launcher with several ranks only rank 0 writes
/// the report of --json; a command that is one process (all but train and bench collective) is
/// refused, by rank 0 alone.
int run_program(std::vector<std::string> arguments, cli::CommandTable commands);

}  // namespace strait::app
