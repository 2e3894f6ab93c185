// strait: all commands.
#include "strait/app/program.h"

int main(int argc, char** argv) {
  return strait::app::run_program({argv + 1, argv + argc}, strait::app::all_commands());
}
