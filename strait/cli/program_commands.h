// The commands that need no LibTorch: they read programs and folders.
#pragma once

#include "strait/cli/run_command.h"

namespace strait::cli {

/// verify, simulate, plan, report.
CommandTable program_commands();

}  // namespace strait::cli
