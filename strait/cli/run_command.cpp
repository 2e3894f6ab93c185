#include "strait/cli/run_command.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "strait/base/errors.h"
#include "strait/cli/report_envelope.h"

namespace strait::cli {
namespace {

/// Target of --json and the command's name, read without trust in the rest of the arguments: a
/// report is owed even when they are wrong.
Command guess_command(const std::vector<std::string>& arguments, const CommandTable& table) {
  Command command;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (command.name.empty() && table.contains(argument)) command.name = argument;
    if (argument == "--json" && i + 1 < arguments.size()) command.json = arguments[i + 1];
    if (argument.starts_with("--json=")) command.json = argument.substr(7);
  }
  return command;
}

std::vector<std::string> names_of(const CommandTable& table) {
  std::vector<std::string> names;
  for (const auto& [name, handler] : table) names.push_back(name);
  return names;
}

void print_error(const std::string& command, const Error& error, Streams& streams) {
  const std::string who = command.empty() ? "strait" : "strait " + command;
  streams.err << fmt::format("{}: error: {}\n", who, without_controls(error_line(error)))
              << std::flush;
}

/// Writes the report where --json says. Throws InputOutputError.
void report(const Command& command, const Error* error, const Json& body, Streams& streams) {
  if (command.json.empty()) return;
  const Json envelope = make_envelope(command.name.empty() ? "command" : command.name, error, body);
  if (command.json != "-") {
    write_envelope(command.json, envelope);
    return;
  }
  streams.out << envelope.dump(2) << '\n' << std::flush;
  if (!streams.out) throw InputOutputError("cannot write the JSON report to stdout");
}

/// Runs the handler; the result's members are in `body` whatever happens.
std::optional<Error> call(const Command& command, const CommandTable& table, Output& output,
                          Json& body) {
  try {
    body = table.at(command.name)(command, output);
    output.progress("");
    if (!output.good())
      throw InputOutputError("cannot write the output: disk full or stream closed");
    return std::nullopt;
  } catch (...) {
    output.progress("");
    if (!body.is_object() || body.size() == 0) body = output.partial();
    return as_error(std::current_exception());
  }
}

int finish(const Command& command, std::optional<Error> error, const Json& body, Streams& streams) {
  // The report first: whoever has closed stderr may still read it.
  std::optional<Error> failed;
  try {
    report(command, error ? &*error : nullptr, body, streams);
  } catch (...) {
    failed = as_error(std::current_exception());
  }
  for (const std::optional<Error>& one : {error, failed})
    if (one) print_error(command.name, *one, streams);
  if (!error) error = failed;
  return static_cast<int>(error ? error->code() : ExitCode::kDone);
}

}  // namespace

namespace {

/// Of the first of the two streams that is a terminal.
int64_t terminal_columns() {
  struct winsize size {};
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    if (::ioctl(stream, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return Output::kColumns;
}

}  // namespace

Streams process_streams() {
  return {std::cout, std::cerr, ::isatty(STDOUT_FILENO) == 1, ::isatty(STDERR_FILENO) == 1,
          terminal_columns};
}

void outlive_closed_pipes() { std::signal(SIGPIPE, SIG_IGN); }

int run_command(const std::vector<std::string>& arguments, const CommandTable& table,
                Streams streams) {
  Command command = guess_command(arguments, table);
  try {
    command = parse_arguments(arguments, names_of(table));
  } catch (...) {
    return finish(command, as_error(std::current_exception()), Json::object(), streams);
  }
  if (!command.text.empty()) {
    streams.out << command.text << std::flush;
    return static_cast<int>(streams.out ? ExitCode::kDone : ExitCode::kInputOutput);
  }
  const bool json_on_out = command.json == "-";
  Output output(json_on_out ? streams.err : streams.out,
                json_on_out ? streams.err_is_terminal : streams.out_is_terminal);
  output.set_columns(streams.columns);
  output.set_leave([&](const std::exception_ptr& failure, const Json& so_far) {
    output.progress("");
    const int code = finish(command, as_error(failure), so_far, streams);
    streams.out << std::flush;
    streams.err << std::flush;
    std::_Exit(code);
  });
  Json body = Json::object();
  std::optional<Error> error = call(command, table, output, body);
  return finish(command, std::move(error), body, streams);
}

int run_command(const std::vector<std::string>& arguments, const CommandTable& table) {
  return run_command(arguments, table, process_streams());
}

}  // namespace strait::cli
