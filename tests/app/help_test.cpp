// Every example that --help prints works as printed: the ones that measure a machine are read, the
// others run in a folder that holds the files which they name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>

#include "strait/base/errors.h"
#include "tests/app/program.h"
#include "tests/paths.h"

namespace strait {
namespace {

using test::TemporaryFolder;
using ::testing::HasSubstr;

std::vector<std::string> command_names() {
  cli::CommandTable table = cli::program_commands();
  app::add_commands(table);
  std::vector<std::string> names;
  for (const auto& [name, handler] : table) names.push_back(name);
  return names;
}

/// The lines below "Example:".
std::vector<std::string> examples_of(std::vector<std::string> words) {
  words.push_back("--help");
  std::istringstream text(cli::parse_arguments(words, command_names()).text);
  std::vector<std::string> examples;
  bool below = false;
  for (std::string line; std::getline(text, line);) {
    const size_t begin = line.find_first_not_of(' ');
    if (below && begin != std::string::npos && line.substr(begin).starts_with("strait "))
      examples.push_back(line.substr(begin));
    below = below || line == "Example:";
  }
  return examples;
}

void write_gzip(const std::string& path, const std::string& text) {
  const gzFile file = ::gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(::gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  ::gzclose(file);
}

/// What the examples name: a run file, a book, JSON-lines.
void furnish(const std::string& folder) {
  const std::string text = "Once upon a time. " + test::small_text(3000);
  std::ofstream(folder + "/book.txt") << text;
  std::ofstream(folder + "/run.toml")
      << "[model]\npreset = \"nano-char\"\nshape = { layers = 2, width = 16, heads = 2, kv_heads = "
         "2, ffn_width = 40, context = 12 }\n[train]\nsteps = 3\n[data]\npath = \"book.txt\"\n";
  std::string lines;
  for (int line = 0; line < 100; ++line)
    lines += "{\"text\": \"" + std::string("the book of line ") + std::to_string(line) + "\"}\n";
  write_gzip(folder + "/books.jsonl.gz", lines);
}

/// Exit status of an example, run by a shell in `folder`; its output in folder/log.
int run_line(const std::string& folder, const std::string& line) {
  const std::string command = "cd " + folder + " && " + test::in_build(line) + " >log 2>&1";
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(HelpExamples, EachRuns) {
  const TemporaryFolder folder;
  furnish(folder.path());
  // In an order in which each finds what those before it made.
  std::vector<std::vector<std::string>> commands = {{},          {"train"},  {"sample"},
                                                    {"inspect"}, {"report"}, {"convert"}};
  for (const std::string& name : command_names())
    if (name != "bench" && name != "probe" &&
        std::find(commands.begin(), commands.end(), std::vector{name}) == commands.end())
      commands.push_back({name});
  for (const std::vector<std::string>& command : commands) {
    const std::vector<std::string> examples = examples_of(command);
    EXPECT_FALSE(examples.empty()) << ::testing::PrintToString(command);
    for (const std::string& line : examples)
      EXPECT_EQ(run_line(folder.path(), line), 0) << line << '\n'
                                                  << read_file(folder.path() + "/log");
  }
}

TEST(HelpExamples, ThoseThatMeasureForLongAreUnderstood) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"probe"},
                                             {"bench"},
                                             {"bench", "gemm"},
                                             {"bench", "step"},
                                             {"bench", "codec"},
                                             {"bench", "collective"},
                                             {"bench", "checkpoint"}}) {
    const std::vector<std::string> examples = examples_of(command);
    EXPECT_FALSE(examples.empty()) << ::testing::PrintToString(command);
    for (const std::string& line : examples) {
      std::istringstream words(line);
      std::vector<std::string> arguments;
      for (std::string word; words >> word;) arguments.push_back(word);
      arguments.erase(arguments.begin());
      EXPECT_NO_THROW(cli::parse_arguments(arguments, command_names())) << line;
    }
  }
}

TEST(RankCounts, EachIsAnsweredOrRefusedAtOnceWithTheNearest) {
  const TemporaryFolder folder;
  const std::string file = test::in_source("examples/minimal.toml");
  for (const char* command : {"plan", "simulate", "verify"}) {
    for (const char* ranks : {"0", "-1", "1000000", "99999999999999999999", "two", "", "1.5"}) {
      const auto ran = test::run({command, file, "--ranks", ranks});
      EXPECT_EQ(ran.exit_code, 2) << command << ' ' << ranks << ": " << ran.err;
      EXPECT_THAT(ran.err, HasSubstr("--ranks")) << command << ' ' << ranks;
    }
  }
}

/// A plan may share sequences among ranks, unless the run file leaves it no choice.
TEST(RankCounts, MoreRanksThanSequencesNameTheNearestBatchOrShareThem) {
  const TemporaryFolder folder;
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin() + 1, {test::in_source("examples/minimal.toml"), "--ranks",
                                             "64", "--cluster", "perlmutter"});
    return test::run(arguments, folder.path() + "/report.json");
  };
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"plan", "--set", "plan.search=placement"}, {"simulate"}}) {
    const auto ran = run(arguments);
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("the nearest valid value is 64"));
    EXPECT_EQ(ran.report.at("error").at("key").as_string(), "train.global_batch_size");
  }
  const auto shared = run({"plan"});
  EXPECT_EQ(shared.exit_code, 0) << shared.err;
  EXPECT_THAT(shared.out, HasSubstr("sequence 16"));
}

TEST(RankCounts, ManySimulatedStepsTakeNoLonger) {
  const auto ran = test::run(
      {"simulate", test::in_source("examples/minimal.toml"), "--set", "simulate.steps=1000000000"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
}

}  // namespace
}  // namespace strait
