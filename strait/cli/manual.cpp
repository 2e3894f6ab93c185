#include "strait/cli/manual.h"

#include <fmt/format.h>

#include "strait/base/version.h"

namespace strait::cli {
namespace {

/// Text that troff prints as it stands.
std::string plain(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\')
      result += "\\e";
    else if (c == '-')
      result += "\\-";
    else
      result += c;
  }
  if (result.starts_with(".") || result.starts_with("'")) result = "\\&" + result;
  return result;
}

bool is_subject(const CommandHelp& command) { return command.name.find(' ') != std::string::npos; }

std::string title_of(const std::string& command) {
  return command.empty() ? "strait" : "strait-" + command;
}

std::string heading(const CommandHelp& command) {
  const std::string title = title_of(command.name);
  std::string upper;
  for (const char c : title) upper += c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return fmt::format(".TH {} 1 \"\" \"strait {}\"\n.SH NAME\n{} \\- {}\n", plain(upper), version(),
                     plain(title), plain(command.about));
}

std::string synopsis(const CommandHelp& command) {
  std::string text = fmt::format(".SH SYNOPSIS\n.B strait{}\n",
                                 command.name.empty() ? "" : " " + plain(command.name));
  if (command.name.empty()) return text + ".I COMMAND\n[\\fIoption\\fR ...]\n";
  for (const OptionHelp& option : command.options)
    if (option.flag.empty()) text += fmt::format(".I {}\n", plain(option.value));
  return text + "[\\fIoption\\fR ...]\n";
}

std::string option_entry(const OptionHelp& option) {
  std::string head = option.flag.empty() ? fmt::format("\\fI{}\\fR", plain(option.value))
                                         : fmt::format("\\fB{}\\fR", plain(option.flag));
  if (!option.other.empty()) head = fmt::format("\\fB{}\\fR, {}", plain(option.other), head);
  if (!option.flag.empty() && !option.value.empty())
    head += fmt::format(" \\fI{}\\fR", plain(option.value));
  return fmt::format(".TP\n{}\n{}\n", head, plain(option.about));
}

std::string options_section(const CommandHelp& command, const std::string& title) {
  if (command.options.empty()) return "";
  std::string text = fmt::format(".SH {}\n", plain(title));
  for (const OptionHelp& option : command.options) text += option_entry(option);
  return text;
}

std::string example(const CommandHelp& command) {
  return command.example.empty()
             ? ""
             : fmt::format(".SH EXAMPLE\n.nf\n{}\n.fi\n", plain(command.example));
}

std::string command_list(const std::vector<CommandHelp>& commands) {
  std::string text = ".SH COMMANDS\n";
  for (const CommandHelp& command : commands)
    if (!command.name.empty() && !is_subject(command))
      text += fmt::format(".TP\n\\fBstrait\\-{}\\fR(1)\n{}\n", plain(command.name),
                          plain(command.about));
  return text;
}

constexpr const char* kExitCodes =
    ".SH EXIT STATUS\n0 done, or stopped by a signal after saving; 1 internal error; 2 wrong "
    "command, "
    "file,\ndata or checkpoint; 3 nothing fits; 4 a rank was lost or a deadline passed; 5 the loss "
    "is "
    "not\nfinite; 6 a file cannot be read or written.\n";

}  // namespace

std::vector<ManualPage> manual_pages(const std::vector<CommandHelp>& commands) {
  std::vector<ManualPage> pages;
  for (const CommandHelp& command : commands) {
    if (is_subject(command)) {  // on the page of its command
      pages.back().text += options_section(command, command.name);
      continue;
    }
    std::string text = heading(command) + synopsis(command);
    if (command.name.empty()) text += command_list(commands);
    text += options_section(command, "OPTIONS") + example(command);
    if (command.name.empty()) text += kExitCodes;
    pages.push_back({title_of(command.name) + ".1", text});
  }
  return pages;
}

}  // namespace strait::cli
