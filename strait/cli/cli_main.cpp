// strait without LibTorch: plan, simulate, verify, report.
#include "strait/cli/program_commands.h"
#include "strait/cli/run_command.h"

int main(int argc, char** argv) {
  strait::cli::outlive_closed_pipes();
  return strait::cli::run_command({argv + 1, argv + argc}, strait::cli::program_commands());
}
