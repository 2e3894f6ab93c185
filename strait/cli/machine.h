// What machine this is, for reports.
#pragma once

#include <cstdint>
#include <string>

namespace strait::cli {

struct Machine {
  std::string cpu;     // model name, "unknown" when the system does not tell
  int64_t cores = 1;   // cores that this process may use
  std::string device;  // "cpu"
};

/// Reads the system's description. Never fails.
Machine describe_machine();

}  // namespace strait::cli
