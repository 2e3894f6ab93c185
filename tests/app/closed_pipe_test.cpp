// A reader that goes away, such as head, ends no command before its report is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/program.h"

namespace strait {
namespace {

using test::Child;
using test::TemporaryFolder;

/// Starts a program whose stdout is a pipe that nobody reads any more.
std::vector<std::string> with_closed_pipe() {
  return {"bash", "-c", "exec 3> >(:); wait $!; exec \"$@\" >&3", "bash"};
}

TEST(ClosedPipe, TheReportIsWrittenAllTheSame) {
  const TemporaryFolder folder;
  const std::string json = folder.path() + "/report.json", log = folder.path() + "/log";
  const std::string file = test::small_run_file(folder.path());
  for (const std::string command : {"simulate", "plan", "verify"}) {
    std::filesystem::remove(json);
    Child child({command, file, "--ranks", "1", "--json", json}, log, with_closed_pipe());
    EXPECT_EQ(child.wait(), 6) << command;
    ASSERT_TRUE(std::filesystem::exists(json)) << command;
    const Json report = Json::parse(read_file(json), json);
    EXPECT_EQ(report.at("exit_code").as_integer(), 6);
    EXPECT_EQ(report.at("error").at("kind").as_string(), "input-output");
    if (command == "simulate") EXPECT_GT(report.at("seconds_per_step").as_number(), 0);
  }
}

}  // namespace
}  // namespace strait
