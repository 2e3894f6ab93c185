#include "strait/app/program.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "strait/app/commands.h"
#include "strait/app/local_rates.h"
#include "strait/app/signals.h"
#include "strait/base/errors.h"
#include "strait/cli/program_commands.h"
#include "strait/comm/launch.h"
#include "strait/threads/cores.h"

namespace strait::app {
namespace {

/// How long a rank that failed stays, so that the launcher does not end the others before they have
/// spoken.
constexpr auto kLastWords = std::chrono::seconds(1);

/// Rank 0 writes the report for all.
std::vector<std::string> without_report(std::vector<std::string> arguments) {
  for (size_t at = 0; at < arguments.size();) {
    const bool two = arguments[at] == "--json" && at + 1 < arguments.size();
    const auto begin = arguments.begin() + static_cast<int64_t>(at);
    if (two || arguments[at].starts_with("--json="))
      arguments.erase(begin, begin + (two ? 2 : 1));
    else
      ++at;
  }
  return arguments;
}

bool is_parallel(const cli::Command& command) {
  return command.name == "train" || command.name == "probe" ||
         (command.name == "bench" && command.subject == "collective");
}

[[noreturn]] void refuse(const cli::Command& command, const comm::Launch& launch) {
  if (launch.rank > 0) {  // rank 0 tells
    std::this_thread::sleep_for(kLastWords);
    std::_Exit(static_cast<int>(ExitCode::kUser));
  }
  throw UserError(
      fmt::format("strait {} is one process, but {} has started {} of them; run it without a "
                  "launcher, or with one rank (mpirun -n 1, srun -n 1)",
                  command.name, launch.launcher, launch.size));
}

}  // namespace

cli::CommandTable all_commands() {
  cli::CommandTable commands =
      cli::program_commands([](Run& run) { use_local_rates(run, available_cores()); });
  add_commands(commands);
  return commands;
}

int run_program(std::vector<std::string> arguments, cli::CommandTable commands) {
  for (auto& [name, handler] : commands)
    if (name != "train")  // which takes them itself
      handler = [handler](const cli::Command& command, cli::Output& output) {
        release_stop_signals();
        return handler(command, output);
      };
  comm::Launch launch;
  try {
    launch = comm::find_launch();
  } catch (const Error&) {  // the command tells
  }
  if (launch.size > 1)
    for (auto& [name, handler] : commands)
      handler = [handler, launch](const cli::Command& command, cli::Output& output) {
        if (!is_parallel(command)) refuse(command, launch);
        return handler(command, output);
      };
  if (launch.rank > 0) arguments = without_report(std::move(arguments));
  cli::Streams streams = cli::process_streams();
  // Open MPI gives each rank a terminal of its own even where its output goes to a file.
  if (launch.launched()) streams.out_is_terminal = streams.err_is_terminal = false;
  const int code = cli::run_command(arguments, commands, streams);
  if (code != 0 && launch.size > 1) std::this_thread::sleep_for(kLastWords);
  return code;
}

}  // namespace strait::app
