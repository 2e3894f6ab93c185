// Limits of the system end a command with a message, never with an abort.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/app/program.h"
#include "tests/sanitized.h"

namespace strait {
namespace {

using test::Child;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Starts the program with so much address space.
std::vector<std::string> with_address_space(int64_t kibibytes) {
  return {"bash", "-c", "ulimit -v " + std::to_string(kibibytes) + "; exec \"$0\" \"$@\""};
}

TEST(Limits, ThreadRanksBeyondTheAddressSpaceAreRefusedWithTheNearestNumber) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer reserves more address space than the limit";
  const TemporaryFolder folder;
  const std::string file = test::small_run_file(folder.path()), log = folder.path() + "/log",
                    run_dir = folder.path() + "/run";
  Child child({"train", file, "--ranks", "100000", "--set", "train.global_batch_size=100000",
               "--set", "output.run_dir=" + run_dir},
              log, with_address_space(4'000'000));
  EXPECT_EQ(child.wait(), 2) << read_file(log);
  EXPECT_THAT(read_file(log), AllOf(HasSubstr("100000 thread ranks take"),
                                    HasSubstr("the nearest number of ranks is ")));
  EXPECT_FALSE(std::filesystem::exists(run_dir));
}

TEST(Limits, MoreRanksThanAnySystemHasThreadsForAreRefusedAtOnce) {
  const TemporaryFolder folder;
  const auto ran =
      test::run({"train", test::small_run_file(folder.path()), "--ranks", "1000000000"},
                folder.path() + "/report.json");
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_EQ(ran.report.at("error").at("key").as_string(), "--ranks");
}

TEST(Limits, ThreadRanksOfBenchmarksAndProbesAreCountedToo) {
  const TemporaryFolder folder;
  const std::vector<std::vector<std::string>> commands = {
      {"bench", "collective", "--bytes", "64", "--ranks", "100000000"},
      {"bench", "checkpoint", "--bytes", "1000", "--ranks", "100000000", "--folder", folder.path()},
      {"probe", "--ranks", "100000000", "-o", folder.path() + "/cluster.toml"}};
  for (const auto& command : commands) {
    const auto ran = test::run(command);
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("the nearest number of ranks is "));
  }
}

TEST(Limits, ProductsLargerThanTheMemoryAreNothingFits) {
  for (const char* size : {"100000000", "1000000000"}) {
    const auto ran = test::run({"bench", "gemm", "--m", size, "--n", size, "--k", "1"});
    EXPECT_EQ(ran.exit_code, 3) << ran.err;
    EXPECT_THAT(ran.err, AllOf(HasSubstr(std::string("bench gemm --m ") + size),
                               HasSubstr("GB are there"), HasSubstr("would fit")));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
}

TEST(Limits, CasesLargerThanTheMemoryAreNothingFits) {
  const TemporaryFolder folder;
  const std::vector<std::vector<std::string>> commands = {
      {"bench", "collective", "--ranks", "2", "--bytes", "1000000000000"},
      {"bench", "collective", "--backend", "mpi", "--ranks", "2", "--bytes", "1000000000000"},
      {"bench", "checkpoint", "--bytes", "1000000000000", "--folder", folder.path()},
      {"bench", "step", "--model", "nano-char", "--vocabulary", "2147483647"}};
  for (const auto& command : commands) {
    const auto ran = test::run(command);
    EXPECT_EQ(ran.exit_code, 3) << ran.err;
    EXPECT_THAT(ran.err,
                AllOf(HasSubstr("bench " + command[1] + " --"), HasSubstr("GB are there")));
  }
}

TEST(Limits, CasesBeyondWhatNumbersHoldAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> commands = {
      {{"step", "--model", "nano-char", "--vocabulary", "9000000000000000000"}, "is 2147483647"},
      {{"gemm", "--m", "64", "--n", "64", "--k", "64", "--threads", "4294967297"}, "is 4096"},
      {{"step", "--model", "nano-char", "--threads", "4097"}, "is 4096"},
      {{"codec", "--codec", "int8+ef"}, "choice is int8"}};
  for (const auto& [words, nearest] : commands) {
    std::vector<std::string> command = {"bench"};
    command.insert(command.end(), words.begin(), words.end());
    const auto ran = test::run(command);
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr("the nearest valid"));
    EXPECT_THAT(ran.err, HasSubstr(nearest));
  }
}

TEST(Limits, NumbersToEncodeThatAreLargerThanTheMemoryAreNothingFits) {
  const auto ran = test::run({"bench", "codec", "--elements", "1000000000000"});
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_THAT(ran.err, AllOf(HasSubstr("bench codec --elements 1000000000000"),
                             HasSubstr("GB are there"), HasSubstr("would fit")));
}

/// What would fit alone, beside the program itself does not.
TEST(Limits, MemoryThatTheSystemRefusesIsNothingFits) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer ends the process itself";
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log";
  Child child({"bench", "gemm", "--m", "22000", "--n", "22000", "--k", "1"}, log,
              with_address_space(4'000'000));
  EXPECT_EQ(child.wait(), 3) << read_file(log);
  const std::string text = read_file(log);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;  // no stack behind it
}

/// A run that fits by what is planned, beside the program itself does not.
TEST(Limits, ARunThatTheSystemRefusesMemoryIsNothingFits) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer ends the process itself";
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log";
  ASSERT_EQ(Child({"--version"}, log).wait(), 0);
  if (read_file(log).find("for CUDA") != std::string::npos)
    GTEST_SKIP() << "the libraries of CUDA alone take more address space than the limit";
  Child child(
      {"train", test::small_run_file(folder.path()), "--ranks", "1", "--set",
       "model.shape={ layers = 8, heads = 8, kv_heads = 8, width = 1024, ffn_width = 4096 }",
       "--set", "placement.preset=ddp", "--set", "output.run_dir=" + folder.path() + "/run"},
      log, with_address_space(2'000'000));
  EXPECT_EQ(child.wait(), 3) << read_file(log);
}

/// Whoever reads the lines has gone after the first; the report is there all the same.
TEST(Limits, AClosedPipeLeavesTheReport) {
  const TemporaryFolder folder;
  const std::string json = folder.path() + "/report.json", log = folder.path() + "/log";
  Child child({"train", test::small_run_file(folder.path()), "--ranks", "1", "--json", json,
               "--set", "train.steps=200", "--set", "output.run_dir=" + folder.path() + "/run"},
              log, {"bash", "-c", "\"$0\" \"$@\" 2>&1 | head -n 1 > /dev/null"});
  child.wait();
  EXPECT_EQ(Json::parse(read_file(json), json).at("exit_code").as_integer(), 6);
}

/// What ranks of a host share is a window of each, mapped by all.
TEST(Limits, ProcessesTrainUnderLimitsOfAddressSpaceAndFileSize) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer reserves more address space than the limit";
  for (const char* limit : {"-v 10000000", "-f 2000000"}) {
    const TemporaryFolder folder;
    const std::string log = folder.path() + "/log";
    std::vector<std::string> launcher = test::mpirun(2);
    launcher.insert(launcher.end(),
                    {"bash", "-c", std::string("ulimit ") + limit + "; exec \"$0\" \"$@\""});
    Child child({"train", test::small_run_file(folder.path()), "--set", "train.steps=2", "--set",
                 "output.run_dir=" + folder.path() + "/run"},
                log, launcher);
    EXPECT_EQ(child.wait(), 0) << limit << ": " << read_file(log);
  }
}

}  // namespace
}  // namespace strait
