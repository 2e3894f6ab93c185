#include "strait/app/commands.h"

#include <fmt/format.h>

#include "strait/checkpoint/inspect.h"

namespace strait::app {

void add_commands(cli::CommandTable& table) {
  table["train"] = train_command;
  table["sample"] = sample_command;
  table["inspect"] = inspect_command;
  table["probe"] = probe_command;
  table["bench"] = bench_command;
}

Json inspect_command(const cli::Command& command, cli::Output& output) {
  Json found = checkpoint::inspect(command.path);
  output.line(fmt::format("{}: step {}, {} parameters in {} tensors, {} ranks, {}",
                          found.at("path").as_string(), found.at("step").as_integer(),
                          found.at("parameters").as_integer(), found.at("tensors").size(),
                          found.at("ranks").as_integer(),
                          found.at("complete").as_bool() ? "complete" : "NOT complete"));
  for (const Json& file : found.at("files").as_array())
    output.line(fmt::format("  {:<28} {:>14} bytes  {}", file.at("name").as_string(),
                            file.at("bytes").as_integer(),
                            file.at("ok").as_bool() ? "ok" : "DAMAGED"));
  return found;
}

}  // namespace strait::app
