// Completion of strait's command line in a shell, generated from the command table.
#pragma once

#include <string>
#include <vector>

#include "strait/cli/grammar.h"

namespace strait::cli {

/// The shells, in the order of help.
std::vector<std::string> completion_shells();

/// A script that the shell reads (docs/install.md says from where): commands, flags, values of
/// flags that have a few, and files. UserError for another shell.
std::string completion_script(const std::string& shell, const std::vector<CommandHelp>& commands);

}  // namespace strait::cli
