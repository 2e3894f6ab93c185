// Exit codes, the error line, and the JSON report of every way a command can end.
#include "strait/cli/run_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <new>
#include <sstream>
#include <system_error>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/version.h"
#include "strait/cli/report_envelope.h"

namespace strait::cli {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

struct Outcome {
  int code = -1;
  std::string out, err;
};

Outcome run(const Words& arguments, const Handler& train, bool terminal = false) {
  std::ostringstream out, err;
  Outcome outcome;
  outcome.code = run_command(arguments, {{"train", train}}, {out, err, terminal, terminal});
  outcome.out = out.str();
  outcome.err = err.str();
  return outcome;
}

Json good(const Command&, Output& output) {
  output.line("working");
  return Json::object({{"ranks", 2}, {"loss", std::numeric_limits<double>::quiet_NaN()}});
}

template <class Exception>
Handler failing(Exception exception) {
  return [exception](const Command&, Output& output) -> Json {
    output.line("working");
    output.partial()["ranks"] = 2;
    throw exception;
  };
}

std::string temporary(const std::string& name) {
  return (std::filesystem::path(testing::TempDir()) / ("strait_cli_" + name)).string();
}

TEST(RunCommand, SuccessWithoutJson) {
  const Outcome outcome = run({"train", "run.toml"}, good);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "working\n");
  EXPECT_EQ(outcome.err, "");
}

TEST(RunCommand, JsonOnStdoutMovesTheRestToStderr) {
  const Outcome outcome = run({"train", "run.toml", "--json", "-"}, good);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "working\n");
  const Json report = Json::parse(outcome.out, "stdout");
  EXPECT_EQ(report.at("format").as_string(), "strait.train/1");
  EXPECT_TRUE(report.at("ok").as_bool());
  EXPECT_EQ(report.at("exit_code").as_integer(), 0);
  EXPECT_TRUE(report.at("error").is_null());
  EXPECT_EQ(report.at("version").as_string(), version());
  EXPECT_EQ(report.at("commit").as_string(), commit());
  EXPECT_NE(report.at("machine").at("cpu").as_string(), "");
  EXPECT_GE(report.at("machine").at("cores").as_integer(), 1);
  EXPECT_EQ(report.at("machine").at("device").as_string(), "cpu");
  EXPECT_EQ(report.at("ranks").as_integer(), 2);
  EXPECT_TRUE(report.at("loss").is_null());  // never NaN
}

TEST(RunCommand, ExitCodesOfEveryFailure) {
  struct Case {
    Handler handler;
    int code;
    const char* kind;
  };
  const Case cases[] = {
      {failing(InternalError("x")), 1, "internal"},
      {failing(UserError("x")), 2, "user"},
      {failing(NothingFits("x")), 3, "nothing-fits"},
      {failing(PeerLost("x")), 4, "peer-lost"},
      {failing(Timeout("x")), 4, "timeout"},
      {failing(NonFinite("x")), 5, "non-finite"},
      {failing(InputOutputError("x")), 6, "input-output"},
      {failing(std::bad_alloc()), 3, "nothing-fits"},
      {failing(std::runtime_error("x")), 1, "internal"},
      {failing(std::runtime_error("can't allocate memory: 4 bytes\nframe #0")), 3, "nothing-fits"},
      {failing(42), 1, "internal"},
      {failing(std::system_error(ENOSPC, std::generic_category())), 6, "input-output"},
      {failing(std::system_error(EAGAIN, std::generic_category())), 2, "user"},
      {failing(
           std::filesystem::filesystem_error("x", "p", std::make_error_code(std::errc::io_error))),
       6, "input-output"},
  };
  for (const Case& c : cases) {
    const Outcome outcome = run({"train", "run.toml", "--json=-"}, c.handler);
    EXPECT_EQ(outcome.code, c.code);
    EXPECT_THAT(outcome.err, HasSubstr("strait train: error: "));
    const Json report = Json::parse(outcome.out, "stdout");
    EXPECT_FALSE(report.at("ok").as_bool());
    EXPECT_EQ(report.at("exit_code").as_integer(), c.code);
    EXPECT_EQ(report.at("error").at("kind").as_string(), c.kind);
    EXPECT_EQ(report.at("ranks").as_integer(), 2);  // what was known before the failure
  }
}

TEST(RunCommand, TheWidthOfTheTerminalIsAskedForEachTime) {
  std::ostringstream out, err;
  int64_t columns = 60;
  const Handler train = [&](const Command&, Output& output) {
    EXPECT_EQ(output.columns(), 60);
    columns = 40;  // somebody has made it narrower
    EXPECT_EQ(output.columns(), 40);
    return Json::object({});
  };
  const Streams streams{out, err, true, true, [&] { return columns; }};
  EXPECT_EQ(run_command({"train", "run.toml"}, {{"train", train}}, streams), 0);
  EXPECT_EQ(Output(out, true).columns(), 80);
}

TEST(RunCommand, TheErrorNamesEveryPlace) {
  ErrorPlace place;
  place.file = "run.toml";
  place.line = 3;
  place.key = "train.steps";
  place.rank = 1;
  place.operation = "all_gather";
  place.step = 7;
  const Outcome outcome =
      run({"train", "run.toml", "--json", "-"}, failing(UserError("bad thing", place)));
  EXPECT_THAT(outcome.err, HasSubstr("strait train: error: bad thing (run.toml:3, train.steps, "
                                     "rank 1, all_gather, step 7)\n"));
  const Json report = Json::parse(outcome.out, "stdout");
  const Json& error = report.at("error");
  EXPECT_EQ(error.at("message").as_string(), "bad thing");
  EXPECT_EQ(error.at("file").as_string(), "run.toml");
  EXPECT_EQ(error.at("line").as_integer(), 3);
  EXPECT_EQ(error.at("key").as_string(), "train.steps");
  EXPECT_EQ(error.at("rank").as_integer(), 1);
  EXPECT_EQ(error.at("operation").as_string(), "all_gather");
  EXPECT_EQ(error.at("step").as_integer(), 7);
  const Outcome plain = run({"train", "run.toml", "--json", "-"}, failing(UserError("bad thing")));
  EXPECT_THAT(plain.err, HasSubstr("error: bad thing\n"));
  const Json plain_report = Json::parse(plain.out, "stdout");
  for (const char* key : {"file", "line", "key", "rank", "operation", "step"})
    EXPECT_TRUE(plain_report.at("error").at(key).is_null()) << key;
}

TEST(RunCommand, JsonFileOnSuccessAndFailure) {
  const std::string path = temporary("report.json");
  EXPECT_EQ(run({"train", "run.toml", "--json", path}, good).code, 0);
  EXPECT_TRUE(Json::parse(read_file(path), path).at("ok").as_bool());
  const Outcome outcome = run({"train", "run.toml", "--json", path}, failing(NonFinite("nan")));
  EXPECT_EQ(outcome.code, 5);
  EXPECT_EQ(outcome.out, "working\n");
  EXPECT_EQ(Json::parse(read_file(path), path).at("exit_code").as_integer(), 5);
  std::filesystem::remove(path);
}

TEST(RunCommand, WrongArgumentsAreReportedToo) {
  const std::string path = temporary("arguments.json");
  const Outcome outcome = run({"train", "run.toml", "--rnaks", "2", "--json", path}, good);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(
      outcome.err,
      HasSubstr("strait train: error: strait train has no flag --rnaks; the nearest is --ranks"));
  const Json report = Json::parse(read_file(path), path);
  EXPECT_EQ(report.at("format").as_string(), "strait.train/1");
  EXPECT_EQ(report.at("exit_code").as_integer(), 2);
  std::filesystem::remove(path);
  EXPECT_EQ(run({}, good).code, 2);
  const Outcome unknown = run({"trian", "--json", "-"}, good);
  EXPECT_EQ(unknown.code, 2);
  EXPECT_EQ(Json::parse(unknown.out, "stdout").at("error").at("kind").as_string(), "user");
}

TEST(RunCommand, AReportThatCannotBeWritten) {
  const std::string path = temporary("no/such/folder/report.json");
  const Outcome outcome = run({"train", "run.toml", "--json", path}, good);
  EXPECT_EQ(outcome.code, 6);
  EXPECT_THAT(outcome.err, HasSubstr(path));
  EXPECT_EQ(run({"train", "run.toml", "--json", path}, failing(NonFinite("nan"))).code,
            5);  // the first failure counts
}

TEST(RunCommand, AFullDiskIsInputOutput) {
  if (!std::filesystem::exists("/dev/full")) FAIL() << "this test needs /dev/full";
  EXPECT_EQ(run({"train", "run.toml", "--json", "/dev/full"}, good).code, 6);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));  // written in place, not replaced
  EXPECT_EQ(run({"train", "run.toml", "--json", "/dev/null"}, good).code, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST(RunCommand, ABrokenStdoutIsInputOutput) {
  std::ostringstream out, err;
  out.setstate(std::ios::badbit);
  EXPECT_EQ(run_command({"train", "run.toml"}, {{"train", good}}, {out, err}), 6);
  EXPECT_EQ(run_command({"train", "run.toml", "--json", "-"}, {{"train", good}}, {out, err}), 6);
  EXPECT_EQ(run_command({"--help"}, {{"train", good}}, {out, err}), 6);
}

TEST(RunCommand, HelpGoesToStdout) {
  const Outcome outcome = run({"train", "--help"}, good);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("Example:"));
  EXPECT_EQ(outcome.err, "");
}

TEST(RunCommand, AResultMayNotHideTheEnvelope) {
  const Handler handler = [](const Command&, Output&) { return Json::object({{"ok", true}}); };
  EXPECT_EQ(run({"train", "run.toml", "--json", "-"}, handler).code, 1);
}

TEST(Output, ProgressShowsOnlyOnATerminal) {
  const Handler handler = [](const Command&, Output& output) {
    output.progress("50 %");
    output.line("step 1");
    output.progress("100 %");
    return Json::object();
  };
  EXPECT_EQ(run({"train", "run.toml"}, handler).out, "step 1\n");
  EXPECT_EQ(run({"train", "run.toml"}, handler, true).out, "50 %\r\x1b[Kstep 1\n100 %\r\x1b[K");
}

TEST(Output, ControlCharactersAreSpelledOut) {
  EXPECT_EQ(without_controls("plain \xc3\xa4 \xe2\x82\xac\n\ttext"),
            "plain \xc3\xa4 \xe2\x82\xac\n\ttext");
  EXPECT_EQ(without_controls("\x1b[2Jgone\r\x7f"), "\\x1b[2Jgone\\x0d\\x7f");
  EXPECT_EQ(without_controls("\xc2\x9b"
                             "2J \xc2\xa0"),
            "\\u009b2J \xc2\xa0");
  EXPECT_EQ(without_controls(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(without_controls("a\r\nb\r"), "a\r\nb\\x0d");
}

}  // namespace
}  // namespace strait::cli
