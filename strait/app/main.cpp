// strait: all commands.
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "strait/app/commands.h"
#include "strait/base/errors.h"
#include "strait/cli/program_commands.h"
#include "strait/cli/run_command.h"
#include "strait/comm/launch.h"

namespace {

/// How long a rank that failed stays, so that the launcher does not end the others before they have spoken.
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

}  // namespace

int main(int argc, char** argv) {
  strait::cli::CommandTable commands = strait::cli::program_commands();
  strait::app::add_commands(commands);
  strait::comm::Launch launch;
  try {
    launch = strait::comm::find_launch([](const char* name) { return std::getenv(name); });
  } catch (const strait::Error&) {  // the command tells
  }
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (launch.rank > 0) arguments = without_report(std::move(arguments));
  const int code = strait::cli::run_command(arguments, commands);
  if (code != 0 && launch.size > 1) std::this_thread::sleep_for(kLastWords);
  return code;
}
