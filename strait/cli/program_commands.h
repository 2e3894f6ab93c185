// The commands that need no LibTorch: they read programs and folders.
#pragma once

#include <functional>

#include "strait/cli/run_command.h"
#include "strait/config/run.h"

namespace strait::cli {

/// Called on every run that was read, before anything is worked out from it.
using PrepareRun = std::function<void(Run&)>;

/// verify, simulate, plan, report.
CommandTable program_commands(const PrepareRun& prepare = [](Run&) {});

}  // namespace strait::cli
