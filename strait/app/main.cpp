// strait: all commands.
#include "strait/app/commands.h"
#include "strait/cli/program_commands.h"
#include "strait/cli/run_command.h"

int main(int argc, char** argv) {
  strait::cli::CommandTable commands = strait::cli::program_commands();
  strait::app::add_commands(commands);
  return strait::cli::run_command({argv + 1, argv + argc}, commands);
}
