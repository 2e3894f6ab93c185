// strait: all commands.
#include "strait/app/program.h"
#include "strait/app/signals.h"

namespace {

/// Runs before the initialisation of the libraries, most of what the program does before main.
__attribute__((section(".preinit_array"),
               used)) void (*const kBeforeLibraries)() = strait::app::hold_stop_signals;

}  // namespace

int main(int argc, char** argv) {
  strait::cli::outlive_closed_pipes();
  return strait::app::run_program({argv + 1, argv + argc}, strait::app::all_commands());
}
