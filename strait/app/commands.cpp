#include "strait/app/commands.h"

#include <fmt/format.h>

#include "strait/checkpoint/inspect.h"
#include "strait/convert/convert.h"

namespace strait::app {

void add_commands(cli::CommandTable& table) {
  table["train"] = train_command;
  table["sample"] = sample_command;
  table["inspect"] = inspect_command;
  table["convert"] = convert_command;
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

Json convert_command(const cli::Command& command, cli::Output& output) {
  Json done = convert::convert(command.path, command.output, command.form);
  output.line(fmt::format("{} ({}) -> {} ({}): step {}, {} parameters, hash {}", command.path,
                          done.at("from_form").as_string(), command.output,
                          done.at("to_form").as_string(), done.at("step").as_integer(),
                          done.at("parameters").as_integer(),
                          done.at("parameter_hash").as_string()));
  for (const Json& file : done.at("files").as_array())
    output.line(fmt::format("  {:<28} {:>14} bytes", file.at("name").as_string(),
                            file.at("bytes").as_integer()));
  for (const Json& note : done.at("notes").as_array()) output.line("note: " + note.as_string());
  return done;
}

}  // namespace strait::app
