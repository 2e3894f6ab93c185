// libFuzzer target: lines as the arguments of the program. What is accepted names a command.
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "strait/base/errors.h"
#include "strait/cli/arguments.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> arguments(1);
  for (size_t i = 0; i < size; ++i) {
    if (data[i] == '\n')
      arguments.emplace_back();
    else if (data[i] != 0)  // the system ends an argument there
      arguments.back() += static_cast<char>(data[i]);
  }
  try {
    const auto command = strait::cli::parse_arguments(
        arguments, {"train", "sample", "plan", "simulate", "verify", "probe", "bench", "inspect",
                    "report", "convert", "evaluate"});
    if (command.name.empty() && command.text.empty()) throw std::logic_error("no command");
  } catch (const strait::UserError&) {
    // refused, as a wrong command line should be
  }
  return 0;
}
