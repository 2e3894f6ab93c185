// Completion and manual pages know every command and every flag.
#include "strait/cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/version.h"
#include "strait/cli/about.h"
#include "strait/cli/manual.h"
#include "strait/cli/program_commands.h"

namespace strait::cli {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

/// What bash offers for the last of `words`, behind "strait".
std::set<std::string> offered(const std::vector<std::string>& words) {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("strait-completion-" + std::to_string(getpid())))
          .string();
  write_file_atomically(file, completion_script("bash", describe_commands()));
  std::string command =
      "cd /proc/self/fd && bash -c 'source \"$0\"; COMP_WORDS=(\"$@\"); "
      "COMP_CWORD=$(($# - 1)); _strait; printf \"%s\\n\" \"${COMPREPLY[@]}\"' " +
      file + " strait";
  for (const std::string& word : words) command += " '" + word + "'";
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  EXPECT_EQ(::pclose(pipe), 0) << command;
  std::filesystem::remove(file);
  std::istringstream lines(text);
  std::set<std::string> result;
  for (std::string line; std::getline(lines, line);) result.insert(line);
  return result;
}

TEST(Completion, BashOffersCommandsFlagsSubjectsAndChoices) {
  EXPECT_THAT(offered({""}), IsSupersetOf({"train", "bench", "completion", "convert"}));
  EXPECT_EQ(offered({"tr"}), std::set<std::string>{"train"});
  EXPECT_THAT(offered({"train", "--"}), IsSupersetOf({"--ranks", "--set", "--json"}));
  EXPECT_EQ(offered({"train", "--ra"}), std::set<std::string>{"--ranks"});
  EXPECT_THAT(offered({"bench", "s"}), Contains("step"));
  EXPECT_EQ(offered({"bench", "step", "--precision", ""}),
            (std::set<std::string>{"fp32", "bf16", "fp64"}));
  EXPECT_THAT(offered({"plan", "run.toml", "--"}), Contains("--cluster"));
  EXPECT_THAT(offered({"completion", "z"}), Contains("zsh"));
}

TEST(Completion, EveryShellKnowsEveryFlag) {
  const auto commands = describe_commands();
  for (const std::string& shell : completion_shells()) {
    const std::string script = completion_script(shell, commands);
    for (const CommandHelp& command : commands) {
      if (shell == "fish" && command.name.starts_with("bench ")) continue;  // subjects alone
      for (const OptionHelp& option : command.options)
        EXPECT_THAT(script, HasSubstr(option.flag.substr(option.flag.empty() ? 0 : 2)))
            << shell << " " << command.name;
    }
  }
}

TEST(Completion, AnotherShellIsRefused) {
  try {
    completion_script("bahs", describe_commands());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("nearest is bash (bash, zsh, fish)"));
  }
}

TEST(Manual, HasAPagePerCommandWithItsFlagsAndItsExample) {
  const auto commands = describe_commands();
  const auto pages = manual_pages(commands);
  std::string all;
  for (const ManualPage& page : pages) {
    EXPECT_TRUE(page.text.starts_with(".TH STRAIT")) << page.file;
    all += page.text;
  }
  size_t subjects = 0;
  for (const CommandHelp& command : commands) {
    subjects += command.name.find(' ') != std::string::npos;
    for (const OptionHelp& option : command.options) {
      std::string flag;
      for (const char c : option.flag) flag += c == '-' ? "\\-" : std::string(1, c);
      EXPECT_THAT(all, HasSubstr(flag)) << command.name;
    }
  }
  EXPECT_EQ(pages.size(), commands.size() - subjects);
  EXPECT_EQ(pages.front().file, "strait.1");
  EXPECT_THAT(all, HasSubstr("strait train run.toml \\-\\-ranks 2 \\-\\-set data.path=book.txt"));
}

/// What stands on stdout alone.
Json report_of(const std::vector<std::string>& arguments) {
  std::ostringstream out, err;
  EXPECT_EQ(run_command(arguments, program_commands(), {out, err}), 0) << err.str();
  return Json::parse(out.str(), "stdout");
}

/// What the program writes, and its exit code.
std::string output_of(const std::vector<std::string>& arguments, int expected) {
  std::ostringstream out, err;
  EXPECT_EQ(run_command(arguments, program_commands(), {out, err}), expected) << err.str();
  return out.str() + err.str();
}

TEST(About, VersionNamesTheParts) {
  const std::string text = output_of({"--version"}, 0);
  EXPECT_TRUE(text.starts_with("strait "));
  for (const char* part : {"\ninstructions ", "\ntiles ", "\noneDNN "})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(about_text({{"MPI", "none"}}), HasSubstr("\nMPI          none"));
}

TEST(About, VersionIsReportedAsJson) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--version", "--json", "-"}, {"--json=-", "--version"}}) {
    const Json report = report_of(words);
    EXPECT_EQ(report.at("format").as_string(), "strait.version/1");
    EXPECT_TRUE(report.at("ok").as_bool());
    EXPECT_EQ(report.at("version").as_string(), version());
    for (const auto& [name, what] : own_parts())
      EXPECT_EQ(report.at(name == "oneDNN" ? "onednn" : name).as_string(), what);
  }
  EXPECT_THAT(output_of({"--version", "--json="}, 2), HasSubstr("--json"));
  EXPECT_THAT(output_of({"--json", "-"}, 2), HasSubstr("no command"));
}

TEST(About, CompletionIsReportedAsJson) {
  const Json report = report_of({"completion", "zsh", "--json", "-"});
  EXPECT_EQ(report.at("format").as_string(), "strait.completion/1");
  EXPECT_EQ(report.at("shell").as_string(), "zsh");
  EXPECT_EQ(report.at("script").as_string(), completion_script("zsh", describe_commands()));
}

TEST(About, CompletionIsACommand) {
  EXPECT_THAT(output_of({"completion", "bash"}, 0), HasSubstr("complete -o filenames -F _strait"));
  EXPECT_THAT(output_of({"completion", "csh"}, 2), HasSubstr("nearest"));
  EXPECT_THAT(output_of({"version"}, 2), HasSubstr("no command"));
}

}  // namespace
}  // namespace strait::cli
