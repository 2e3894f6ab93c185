#include "strait/cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "strait/base/errors.h"

namespace strait::cli {
namespace {

std::string first_word(const std::string& name) { return name.substr(0, name.find(' ')); }
std::string last_word(const std::string& name) { return name.substr(name.rfind(' ') + 1); }
bool is_subject(const CommandHelp& command) { return command.name.find(' ') != std::string::npos; }

/// Names of the commands, or of the subjects of `command`.
std::vector<std::string> words_below(const std::vector<CommandHelp>& commands,
                                     const std::string& command) {
  std::vector<std::string> words;
  for (const CommandHelp& each : commands) {
    const bool below = command.empty() ? !each.name.empty() && !is_subject(each)
                                       : is_subject(each) && first_word(each.name) == command;
    if (below) words.push_back(last_word(each.name));
  }
  return words;
}

std::vector<std::string> flags_of(const CommandHelp& command) {
  std::vector<std::string> flags;
  for (const OptionHelp& option : command.options) {
    if (!option.flag.empty()) flags.push_back(option.flag);
    if (!option.other.empty()) flags.push_back(option.other);
  }
  return flags;
}

/// `text` between single quotes.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

/// One arm of a case per command: what may follow it.
std::string bash_words(const std::vector<CommandHelp>& commands) {
  std::string text;
  for (const CommandHelp& command : commands) {
    std::vector<std::string> words = words_below(commands, command.name);
    const std::vector<std::string> flags = flags_of(command);
    words.insert(words.end(), flags.begin(), flags.end());
    for (const OptionHelp& option : command.options)
      if (option.flag.empty())
        words.insert(words.end(), option.choices.begin(), option.choices.end());
    text += fmt::format("    {}) words={} ;;\n", quoted(command.name),
                        quoted(fmt::format("{}", fmt::join(words, " "))));
  }
  return text;
}

/// One arm per flag with choices.
std::string bash_choices(const std::vector<CommandHelp>& commands) {
  std::string text;
  for (const CommandHelp& command : commands)
    for (const OptionHelp& option : command.options) {
      if (option.choices.empty() || option.flag.empty()) continue;
      text += fmt::format("    {}) values={} ;;\n",
                          quoted(fmt::format("{} {}", command.name, option.flag)),
                          quoted(fmt::format("{}", fmt::join(option.choices, " "))));
    }
  return text;
}

std::string bash(const std::vector<CommandHelp>& commands) {
  return fmt::format(R"(# bash completion of strait; generated.
_strait() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  local command='' words='' values='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${{COMP_WORDS[i]}} == -* ]] && continue
    case "${{command:+$command }}${{COMP_WORDS[i]}}" in
      {}) command+=${{command:+ }}${{COMP_WORDS[i]}} ;;
    esac
  done
  case "$command $previous" in
{}  esac
  if [[ -n $values ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
    return
  fi
  case "$command" in
{}  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  [[ -n $command && $current != -* ]] && mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -f -- "$current")
}}
complete -o filenames -F _strait strait
)",
                     [&] {
                       std::vector<std::string> names;
                       for (const CommandHelp& command : commands)
                         if (!command.name.empty()) names.push_back(quoted(command.name));
                       return fmt::format("{}", fmt::join(names, " | "));
                     }(),
                     bash_choices(commands), bash_words(commands));
}

/// What a colon or bracket would end is escaped.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == ':' || c == '[' || c == ']') result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_action(const OptionHelp& option) {
  if (!option.choices.empty())
    return fmt::format(":{}:({})", zsh_text(option.value), fmt::join(option.choices, " "));
  if (option.value.empty()) return "";
  return fmt::format(":{}:{}", zsh_text(option.value), option.takes_file() ? "_files" : "");
}

std::string zsh_arguments(const CommandHelp& command) {
  std::string text;
  for (const OptionHelp& option : command.options) {
    const std::string about = fmt::format("[{}]", zsh_text(option.about));
    for (const std::string& flag : {option.flag, option.other})
      if (!flag.empty())
        text += fmt::format(" \\\n        {}", quoted("*" + flag + about + zsh_action(option)));
    if (option.flag.empty() && option.other.empty())
      text += fmt::format(" \\\n        {}", quoted("*" + zsh_action(option)));
  }
  return text;
}

std::string zsh(const std::vector<CommandHelp>& commands) {
  std::string names, arms;
  for (const CommandHelp& command : commands) {
    if (command.name.empty()) continue;
    if (!is_subject(command))
      names += fmt::format("    {}\n", quoted(command.name + ":" + zsh_text(command.about)));
    const std::vector<std::string> subjects = words_below(commands, command.name);
    if (subjects.empty())
      arms +=
          fmt::format("    {}) _arguments{} ;;\n", quoted(command.name), zsh_arguments(command));
    else
      arms +=
          fmt::format("    {}) compadd -- {} ;;\n", quoted(command.name), fmt::join(subjects, " "));
  }
  return fmt::format(R"(#compdef strait
# zsh completion of strait; generated.
_strait() {{
  local -a commands
  commands=(
{0}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    compadd -- {2}
    return
  fi
  local command=$words[2]
  shift words; (( CURRENT-- ))
  if [[ $command == bench ]] && (( CURRENT > 2 )); then
    command="bench $words[2]"
    shift words; (( CURRENT-- ))
  fi
  case $command in
{1}  esac
}}
_strait "$@"
)",
                     names, arms, fmt::join(flags_of(commands.front()), " "));
}

std::string fish(const std::vector<CommandHelp>& commands) {
  std::string text = "# fish completion of strait; generated.\n";
  for (const CommandHelp& command : commands) {
    if (is_subject(command)) continue;
    if (!command.name.empty())
      text += fmt::format("complete -c strait -n __fish_use_subcommand -a {} -d {}\n", command.name,
                          quoted(command.about));
    const std::string condition = command.name.empty()
                                      ? "__fish_use_subcommand"
                                      : quoted("__fish_seen_subcommand_from " + command.name);
    for (const OptionHelp& option : command.options) {
      if (option.flag.empty()) continue;
      text +=
          fmt::format("complete -c strait -n {} -l {}{} -d {}\n", condition, option.flag.substr(2),
                      option.value.empty() ? "" : " -r", quoted(option.about));
    }
    const std::vector<std::string> subjects = words_below(commands, command.name);
    if (!command.name.empty() && !subjects.empty())
      text += fmt::format("complete -c strait -n {} -a {}\n", condition,
                          quoted(fmt::format("{}", fmt::join(subjects, " "))));
    for (const OptionHelp& option : command.options)
      if (option.flag.empty() && !option.choices.empty())
        text += fmt::format("complete -c strait -n {} -a {}\n", condition,
                            quoted(fmt::format("{}", fmt::join(option.choices, " "))));
  }
  return text;
}

}  // namespace

std::vector<std::string> completion_shells() { return {"bash", "zsh", "fish"}; }

std::string completion_script(const std::string& shell, const std::vector<CommandHelp>& commands) {
  if (shell == "bash") return bash(commands);
  if (shell == "zsh") return zsh(commands);
  if (shell == "fish") return fish(commands);
  throw UserError(fmt::format("there is no completion for \"{}\"; the nearest is {} ({})", shell,
                              nearest_choice(shell.substr(0, 100), completion_shells()),
                              fmt::join(completion_shells(), ", ")));
}

}  // namespace strait::cli
