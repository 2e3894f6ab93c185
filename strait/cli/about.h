// What this program is made of, for --version.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "strait/cli/run_command.h"

namespace strait::cli {

/// Names and what stands behind them, in the order of printing.
using Parts = std::vector<std::pair<std::string, std::string>>;

/// Instruction set, matrix tiles, oneDNN: of this processor and this program.
Parts own_parts();

/// "strait 0.1.0 (commit)", then a line per part.
std::string about_text(const Parts& parts);

/// The handler of --version: prints about_text of `parts()` and own_parts(), and reports them by
/// their names in lower case.
Handler version_handler(const std::function<Parts()>& parts);

}  // namespace strait::cli
