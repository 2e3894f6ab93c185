// The command line as a struct. One definition for all commands; a program offers those it has
// handlers for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace strait::cli {

struct SampleArguments {
  std::string prompt;
  int64_t tokens = 200;      // new tokens
  double temperature = 0.8;  // 0 = always the most likely token
  int64_t top_k = 0;         // 0 = all
  double top_p = 1.0;        // in (0, 1]; 1 = all
  int64_t seed = 1337;
};

/// A parsed command line. Fields that a command does not have keep their defaults.
struct Command {
  std::string name;  // "train"; "" with `text` for --help and --version of the program
  std::string text;  // not empty: print it and exit with 0
  std::string path;  // the positional argument: RUN.toml, CHECKPOINT or RUN_DIR
  std::vector<std::string> paths;       // report: all run folders; `path` is the first
  std::optional<int64_t> ranks;         // --ranks, at least 1
  std::vector<std::string> sets;        // --set KEY=VALUE, in order
  std::string json;                     // --json: "" none, "-" stdout, else a file
  std::string cluster;                  // --cluster PRESET|FILE (config/parse.h: cluster_setting)
  std::string output;                   // probe -o, plan -o, report -o, convert TO
  std::string form;                     // convert --to: "" = as TO suggests
  std::optional<int64_t> shard_tokens;  // convert --shard-tokens, 1 to 2^31 - 1
  std::string trace, plot;              // simulate
  bool print = false;                   // verify --print
  SampleArguments sample;
  std::string subject;  // bench: gemm | step | codec | ...
  std::map<std::string, std::string>
      case_keys;  // bench: what was given, e.g. {"micro_batch_size", "4"}
};

/// Parses the arguments after the program's name. `available` are the commands of this program;
/// others do not exist. Errors: UserError naming the wrong command, flag or value and the nearest
/// valid choice.
Command parse_arguments(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& available);

/// Case keys of a bench subject that are whole numbers, and all of them; empty for an unknown
/// subject.
std::vector<std::string> case_key_names(const std::string& subject);
/// Value of a whole-number case key, or `otherwise` when it was not given. parse_arguments has
/// checked it.
int64_t case_number(const Command& command, const std::string& key, int64_t otherwise);
std::string case_text(const Command& command, const std::string& key, const std::string& otherwise);

}  // namespace strait::cli
