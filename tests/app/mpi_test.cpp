// strait train under mpirun: the bits of thread ranks, and what a user does wrong.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/config/cluster_file.h"
#include "strait/threads/cores.h"
#include "tests/app/program.h"

namespace strait {
namespace {

using test::Child;
using test::TemporaryFolder;
using ::testing::HasSubstr;

struct Case {
  std::string placement;
  int64_t ranks;
};

std::vector<std::string> arguments_of(const Case& c, const std::string& run_file,
                                      const std::string& run_dir, const std::string& json) {
  return {"train",  run_file,
          "--set",  "output.run_dir=" + run_dir,
          "--set",  "placement.preset=" + c.placement,
          "--set",  "train.global_batch_size=24",
          "--set",  "train.micro_batch_size=" + std::to_string(c.ranks == 8 ? 3 : 24 / c.ranks / 2),
          "--set",  "train.steps=6",
          "--set",  "evaluation.every_steps=3",
          "--json", json};
}

Json report_of(const std::string& json) { return Json::parse(read_file(json), json); }

class MpiTrain : public ::testing::TestWithParam<Case> {};

TEST_P(MpiTrain, GivesTheBitsAndBytesOfThreadRanks) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const std::string log = folder.path() + "/log";
  std::vector<std::string> threads = arguments_of(GetParam(), run_file, folder.path() + "/threads",
                                                  folder.path() + "/threads.json");
  threads.insert(threads.end(), {"--ranks", std::to_string(GetParam().ranks)});
  ASSERT_EQ(Child(threads, log).wait(), 0) << read_file(log);
  ASSERT_EQ(
      Child(arguments_of(GetParam(), run_file, folder.path() + "/mpi", folder.path() + "/mpi.json"),
            log, test::mpirun(GetParam().ranks))
          .wait(),
      0)
      << read_file(log);
  const Json want = report_of(folder.path() + "/threads.json");
  const Json got = report_of(folder.path() + "/mpi.json");
  EXPECT_EQ(got.at("backend").as_string(), "mpi");
  EXPECT_EQ(got.at("ranks").as_integer(), GetParam().ranks);
  for (const char* key : {"parameter_hash", "losses", "validation", "bytes_per_step", "state_bytes",
                          "allocator_peak_bytes"})
    EXPECT_EQ(got.at(key).dump(), want.at(key).dump()) << key;
}

std::vector<Case> cases() {
  std::vector<Case> result;
  for (const char* placement : {"ddp", "zero1", "zero2", "zero3", "hsdp", "mics"})
    for (const int64_t ranks : {1, 2, 3, 4}) result.push_back({placement, ranks});
  for (const char* placement : {"ddp", "zero3"}) result.push_back({placement, 8});
  return result;
}

INSTANTIATE_TEST_SUITE_P(Grid, MpiTrain, ::testing::ValuesIn(cases()), [](const auto& test) {
  return test.param.placement + std::to_string(test.param.ranks);
});

TEST(MpiUser, NoProgressBarBehindALauncher) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log";
  const std::string run_file = test::small_run_file(folder.path());
  ASSERT_EQ(Child(arguments_of({"zero3", 2}, run_file, folder.path() + "/run",
                               folder.path() + "/report.json"),
                  log, test::mpirun(2))
                .wait(),
            0);
  const std::string told = read_file(log);
  EXPECT_THAT(told, HasSubstr("validation loss"));
  EXPECT_EQ(told.find('\x1b'), std::string::npos) << told;
}

TEST(MpiUser, OneMessageForWhatIsWrongOnAllRanks) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const auto fails = [&](const std::vector<std::string>& more) {
    const std::string log = folder.path() + "/log";
    std::filesystem::remove(log);
    std::vector<std::string> arguments = {"train", run_file, "--set",
                                          "output.run_dir=" + folder.path() + "/run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(Child(arguments, log, test::mpirun(2)).wait(), 2);
    const std::string text = read_file(log);
    const size_t first = text.find("strait train: error");
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("strait train: error", first + 1), std::string::npos) << text;
    return text;
  };
  EXPECT_THAT(fails({"--ranks", "3"}), HasSubstr("started 2 processes"));
  EXPECT_THAT(fails({"--set", "runtime.backend=threads"}), HasSubstr("set it to \"mpi\""));
  EXPECT_THAT(fails({"--set", "data.path=/nowhere"}), HasSubstr("/nowhere"));
  EXPECT_THAT(fails({"--set", "train.step=3"}), HasSubstr("train.steps"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/run"));
}

TEST(MpiUser, ACommandOfOneProcessIsRefusedOnce) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log", json = folder.path() + "/report.json";
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"inspect", folder.path()},
        {"sample", folder.path(), "--prompt", "a"},
        {"bench", "gemm", "--m", "8"}}) {
    std::filesystem::remove(log);
    std::vector<std::string> arguments = command;
    arguments.insert(arguments.end(), {"--json", json});
    EXPECT_EQ(Child(arguments, log, test::mpirun(2)).wait(), 2);
    const std::string text = read_file(log);
    const size_t first = text.find("is one process, but Open MPI has started 2 of them");
    EXPECT_NE(first, std::string::npos) << text;
    EXPECT_EQ(text.find("error:", text.find("error:") + 1), std::string::npos) << text;
    EXPECT_EQ(report_of(json).at("exit_code").as_integer(), 2);
  }
  // Alone it runs, and says what is wrong.
  std::filesystem::remove(log);
  EXPECT_EQ(Child({"inspect", folder.path()}, log, test::mpirun(1)).wait(), 2);
  EXPECT_THAT(read_file(log), HasSubstr("neither a checkpoint nor a run folder"));
}

TEST(MpiUser, AProbeOfProcessesMeasuresTheirLevels) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/cluster.toml", log = folder.path() + "/log";
  ASSERT_EQ(Child({"probe", "-o", file}, log, test::mpirun(2)).wait(), 0) << read_file(log);
  const Cluster cluster = parse_cluster_file(read_file(file), file, 2);
  ASSERT_EQ(cluster.levels.size(), 1u);  // one host
  EXPECT_EQ(cluster.levels[0].name, "world");
  EXPECT_GT(cluster.levels[0].bytes_per_second, 1e7);
  EXPECT_LT(cluster.levels[0].latency_seconds, 0.1);
  EXPECT_GT(cluster.flops_per_second_fp32, 1e8);
  EXPECT_GT(cluster.flops_per_second_bf16, 1e8);
}

/// One process has no links: its level is a copy, as that of one thread rank.
TEST(MpiUser, AProbeOfOneProcessInventsNoLinks) {
  const TemporaryFolder folder;
  const std::string file = folder.path() + "/cluster.toml", log = folder.path() + "/log";
  ASSERT_EQ(Child({"probe", "-o", file}, log, test::mpirun(1)).wait(), 0) << read_file(log);
  const Cluster cluster = parse_cluster_file(read_file(file), file, 1);
  ASSERT_EQ(cluster.levels.size(), 1u);
  // Written in GB: back in bytes the last bit may differ.
  EXPECT_DOUBLE_EQ(cluster.levels[0].bytes_per_second, cluster.memory_bytes_per_second);
  EXPECT_EQ(cluster.levels[0].latency_seconds, 0);
}

TEST(MpiUser, AProbeIntoAMissingFolderMeasuresNothing) {
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log", nowhere = folder.path() + "/nowhere";
  EXPECT_EQ(Child({"probe", "-o", nowhere + "/cluster.toml"}, log, test::mpirun(2)).wait(), 6);
  EXPECT_THAT(read_file(log), HasSubstr("there is no folder " + nowhere));
}

TEST(MpiUser, ABoundRankUsesTheCoresThatItIsBoundTo) {
  const int64_t cores = available_cores();
  if (cores < 2) GTEST_SKIP() << "needs two cores, has " << cores;
  const TemporaryFolder folder;
  const std::string log = folder.path() + "/log";
  const auto threads_of = [&](const std::string& binding) {
    std::filesystem::remove(log);
    std::filesystem::remove_all(folder.path() + "/run");
    std::vector<std::string> launcher = test::mpirun(1);
    launcher.insert(launcher.begin() + 1, {"--bind-to", binding});
    Child({"train", test::small_run_file(folder.path()), "--set", "train.steps=1", "--set",
           "output.run_dir=" + folder.path() + "/run"},
          log, launcher)
        .wait();
    return read_file(log);
  };
  EXPECT_THAT(threads_of("core"), HasSubstr("with 1 compute thread each"));
  EXPECT_THAT(threads_of("none"),
              HasSubstr("with " + std::to_string(cores) + " compute threads each"));
}

}  // namespace
}  // namespace strait
