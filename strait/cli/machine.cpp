#include "strait/cli/machine.h"

#include <algorithm>
#include <fstream>
#include <thread>

namespace strait::cli {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

Machine describe_machine() {
  return {cpu_model(), std::max<int64_t>(std::thread::hardware_concurrency(), 1), "cpu"};
}

}  // namespace strait::cli
