// From arguments to an exit code: parse, call the handler, report success or failure.
#pragma once

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/cli/arguments.h"
#include "strait/cli/output.h"

namespace strait::cli {

/// Runs one command and returns the members of its JSON result; throws strait::Error on failure.
using Handler = std::function<Json(const Command&, Output&)>;
/// The commands of a program by name. A command without a handler does not exist.
using CommandTable = std::map<std::string, Handler>;

/// The two streams of the process, as tests replace them.
struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  std::function<int64_t()> columns = {};  // of the terminal, now; empty = not known
};
/// std::cout and std::cerr.
Streams process_streams();

/// From now on a pipe that its reader has closed fails the write that meets it, instead of ending
/// the process: a report is still owed.
void outlive_closed_pipes();

/// Returns the exit code of INTERFACE (base/errors.h: ExitCode). Failures are one line on stderr,
/// "strait train: error: message (file:line, key)". The JSON report of --json FILE|- is written on
/// success and on failure, wrong arguments included; when it cannot be written the exit code is 6
/// unless the command failed before. Never throws.
int run_command(const std::vector<std::string>& arguments, const CommandTable& table,
                Streams streams);
int run_command(const std::vector<std::string>& arguments, const CommandTable& table);

}  // namespace strait::cli
