// The commands that need LibTorch.
#pragma once

#include <string>

#include "strait/cli/run_command.h"
#include "strait/train/train.h"

namespace strait::app {

/// UserError about a flag.
[[noreturn]] void refuse_flag(const std::string& flag, const std::string& message);

/// Adds train, evaluate, sample, inspect, convert, probe and bench.
void add_commands(cli::CommandTable& table);

Json train_command(const cli::Command& command, cli::Output& output);
/// The same with the hooks that tests need; stuck is its own, and among threads on_request.
Json train_with(const cli::Command& command, cli::Output& output, train::Hooks hooks);
Json evaluate_command(const cli::Command& command, cli::Output& output);
Json sample_command(const cli::Command& command, cli::Output& output);
Json inspect_command(const cli::Command& command, cli::Output& output);
Json convert_command(const cli::Command& command, cli::Output& output);
Json probe_command(const cli::Command& command, cli::Output& output);
Json bench_command(const cli::Command& command, cli::Output& output);

}  // namespace strait::app
