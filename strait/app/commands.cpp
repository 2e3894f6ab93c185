#include "strait/app/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>

#include "strait/app/about.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/inspect.h"
#include "strait/config/parse.h"
#include "strait/config/validate.h"
#include "strait/convert/convert.h"
#include "strait/convert/token_files.h"

namespace strait::app {

void add_commands(cli::CommandTable& table) {
  table["version"] = cli::version_handler(library_parts);
  table["train"] = train_command;
  table["evaluate"] = evaluate_command;
  table["sample"] = sample_command;
  table["inspect"] = inspect_command;
  table["convert"] = convert_command;
  table["probe"] = probe_command;
  table["bench"] = bench_command;
}

namespace {

std::string path_of(const Json& found, const Json& file) {
  return found.at("path").as_string() + "/" + file.at("name").as_string();
}

/// What is wrong with a file that is not as its checkpoint says.
std::string damage_of(const Json& found, const Json& file) {
  std::error_code missing;
  const auto bytes =
      static_cast<int64_t>(std::filesystem::file_size(path_of(found, file), missing));
  if (missing) return "missing";
  const int64_t want = file.at("bytes").as_integer();
  return bytes == want ? "damaged" : fmt::format("damaged: {} of {} bytes", bytes, want);
}

/// A user error that names the first damaged file; the report holds all of them.
void refuse_damage(const Json& found, cli::Output& output) {
  ErrorPlace place;
  std::string message = found.at("path").as_string() + " is not complete";
  for (const Json& file : found.at("files").as_array()) {
    if (file.at("ok").as_bool() || place.file) continue;
    place.file = path_of(found, file);
    message = fmt::format("{} is {}", *place.file, damage_of(found, file));
  }
  if (!place.file && found.at("complete").as_bool()) return;
  output.partial() = found;
  throw UserError(message, place);
}

}  // namespace

Json inspect_command(const cli::Command& command, cli::Output& output) {
  Json found = checkpoint::inspect(command.path);
  output.line(fmt::format("{}: step {}, {} parameters in {} tensors, {} ranks, {}",
                          found.at("path").as_string(), found.at("step").as_integer(),
                          found.at("parameters").as_integer(), found.at("tensors").size(),
                          found.at("ranks").as_integer(),
                          found.at("complete").as_bool() ? "complete" : "NOT complete"));
  if (const Json& loss = found.at("validation_loss"); !loss.is_null())
    output.line(fmt::format("  validation loss {:.4f}", loss.as_number()));
  for (const Json& file : found.at("files").as_array())
    output.line(fmt::format("  {:<28} {:>14} bytes  {}", file.at("name").as_string(),
                            file.at("bytes").as_integer(),
                            file.at("ok").as_bool() ? "ok" : damage_of(found, file)));
  for (const Json& state : found.at("states").as_array()) {
    const int64_t senders = state.at("senders").as_integer();
    output.line(fmt::format("  {:<28} {:>14} elements  {}{}", state.at("name").as_string(),
                            state.at("elements").as_integer(), state.at("dtype").as_string(),
                            senders > 0 ? fmt::format(", of {} senders", senders) : ""));
  }
  refuse_damage(found, output);
  return found;
}

void refuse_flag(const std::string& flag, const std::string& message) {
  ErrorPlace place;
  place.key = flag;
  throw UserError(message, place);
}

namespace {

/// [data] of --set, for the data at `path`.
DataOptions data_options(const std::string& path, const std::vector<std::string>& sets) {
  for (const std::string& set : sets)
    if (!set.starts_with("data.") || set.starts_with("data.path"))
      refuse_flag(
          "--set",
          fmt::format("--set {}: a conversion of data takes the keys of [data] but data.path, "
                      "as data.tokenizer=bpe:4096",
                      set));
  Run run = parse_run("", "--set", sets);
  run.data.path = path;
  validate_run(run, 1);
  return run.data;
}

Json convert_to_tokens(const cli::Command& command, cli::Output& output) {
  convert::TokenFileOptions options;
  if (!command.form.empty()) options.form = command.form;
  if (command.shard_tokens && options.form != "llm.c")
    refuse_flag("--shard-tokens",
                fmt::format("--shard-tokens has no effect on --to {}: only llm.c's form is cut "
                            "into shards",
                            options.form));
  options.shard_tokens = command.shard_tokens.value_or(options.shard_tokens);
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  Json done =
      convert::convert_data(data_options(command.path, command.sets), command.output, options);
  output.line(fmt::format("{} ({}) -> {} ({}): {} training and {} validation tokens, vocabulary {}",
                          command.path, done.at("from_form").as_string(), command.output,
                          done.at("to_form").as_string(), done.at("training_tokens").as_integer(),
                          done.at("validation_tokens").as_integer(),
                          done.at("vocabulary").as_integer()));
  return done;
}

Json convert_model(const cli::Command& command, cli::Output& output) {
  if (!command.sets.empty() || command.shard_tokens)
    refuse_flag(command.shard_tokens ? "--shard-tokens" : "--set",
                "--set and --shard-tokens have no effect on models: they are for data (--to llm.c, "
                "megatron)");
  Json done = convert::convert(command.path, command.output, command.form);
  output.line(fmt::format("{} ({}) -> {} ({}): step {}, {} parameters, hash {}", command.path,
                          done.at("from_form").as_string(), command.output,
                          done.at("to_form").as_string(), done.at("step").as_integer(),
                          done.at("parameters").as_integer(),
                          done.at("parameter_hash").as_string()));
  return done;
}

}  // namespace

Json convert_command(const cli::Command& command, cli::Output& output) {
  const bool to_tokens = convert::is_token_form(command.form);
  const bool exists = path_exists(command.path);
  const bool holds_model = exists && convert::holds_model(command.path);
  if (to_tokens && holds_model)
    refuse_flag("--to", fmt::format("--to {}: {} holds a model, and that is a form of data; the "
                                    "nearest is --to safetensors, checkpoint or hf",
                                    command.form, command.path));
  const bool data = to_tokens || (command.form.empty() && exists && !holds_model);
  Json done = data ? convert_to_tokens(command, output) : convert_model(command, output);
  for (const Json& file : done.at("files").as_array())
    output.line(fmt::format("  {:<28} {:>14} bytes", file.at("name").as_string(),
                            file.at("bytes").as_integer()));
  for (const Json& note : done.at("notes").as_array()) output.line("note: " + note.as_string());
  return done;
}

}  // namespace strait::app
