// The command table as data: what completion and manual pages are generated from.
#pragma once

#include <string>
#include <vector>

namespace strait::cli {

struct OptionHelp {
  std::string flag;   // "--ranks"; "" for a positional argument
  std::string other;  // "-o", or ""
  std::string value;  // "N", "PATH"; "" for a switch
  std::string about;
  std::vector<std::string> choices;  // none: anything, or a file
  bool required = false;
  bool takes_file() const;
};

struct CommandHelp {
  std::string name;  // "" for strait itself, "train", "bench gemm"
  std::string about, example;
  std::vector<OptionHelp> options;
};

/// strait itself first, then every command of every program in the order of `strait --help`;
/// subjects of bench behind it.
std::vector<CommandHelp> describe_commands();

}  // namespace strait::cli
