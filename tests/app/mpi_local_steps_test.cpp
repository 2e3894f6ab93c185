// Replicas of processes: the bits and bytes of those of threads.
#include <gtest/gtest.h>

#include "tests/app/mpi_and_threads.h"
#include "tests/app/mpi_job.h"

namespace strait {
namespace {

struct Case {
  std::string name, policy;
  std::vector<std::string> more;
};

class MpiLocalSteps : public ::testing::TestWithParam<Case> {};

TEST_P(MpiLocalSteps, GivesTheBitsAndBytesOfThreadRanks) {
  const Case& c = GetParam();
  std::vector<std::string> sets = {"sync.policy=" + c.policy,   "sync.replica=2",
                                   "placement.preset=zero1",    "train.global_batch_size=24",
                                   "train.micro_batch_size=3",  "train.steps=10",
                                   "sync.rounds.period_steps=4"};
  sets.insert(sets.end(), c.more.begin(), c.more.end());
  test::expect_processes_to_train_as_threads(sets, 4);
}

INSTANTIATE_TEST_SUITE_P(
    Policies, MpiLocalSteps,
    ::testing::Values(Case{"diloco", "diloco", {}},
                      Case{"streaming",
                           "streaming-diloco",
                           {"sync.rounds.fragments=2", "sync.outer.codec=int4/128"}},
                      Case{"co2", "co2", {}}, Case{"eager", "co2", {"sync.rounds.eager=true"}}),
    [](const auto& test) { return test.param.name; });

/// Ranks of a replica and replicas have one last step, wherever the signal goes.
TEST(MpiReplicas, ASignalToOneRankEndsARoundInItsMiddle) {
  const test::TemporaryFolder folder;
  const std::string json = folder.path() + "/report.json", log = folder.path() + "/log";
  const auto words =
      test::small_training(folder.path(), json,
                           {"placement.preset=zero1", "sync.policy=diloco", "sync.replica=2",
                            "sync.rounds.period_steps=1000000", "train.steps=1000000"});
  test::MpiJob job(words, 4, folder.path(), false);
  const auto processes = job.find_all();
  ASSERT_EQ(processes.size(), 4u) << read_file(log);
  test::wait_for_step(job.launcher(), folder.path() + "/run");
  ::kill(processes.at(3), SIGUSR1);
  ASSERT_TRUE(job.ends_within(30)) << read_file(log);
  ASSERT_EQ(job.launcher().wait(), 0) << read_file(log);
  const Json report = Json::parse(read_file(json), json);
  EXPECT_EQ(report.at("stopped_by").as_string(), "SIGUSR1");
  EXPECT_TRUE(report.at("checkpoint").is_string()) << read_file(log);
}

/// The replica of the last rank is NaN at once; its peer hears of it at the next border.
TEST(MpiReplicas, OneThatIsNotFiniteEndsTheRunWithFive) {
  const test::TemporaryFolder folder;
  const std::string json = folder.path() + "/report.json", log = folder.path() + "/log";
  const auto words = test::small_training(
      folder.path(), json,
      {"placement.preset=ddp", "sync.policy=diloco", "sync.rounds.period_steps=30",
       "optimizer.kind=sgd", "optimizer.learning_rate=1", "optimizer.schedule=constant",
       "optimizer.weight_decay=0", "optimizer.warmup_steps=0", "train.clip_norm=0",
       "train.global_batch_size=2", "train.steps=90"});
  EXPECT_EQ(test::Child(words, log, test::mpirun(2)).wait(), 5) << read_file(log);
  const Json report = Json::parse(read_file(json), json);
  EXPECT_EQ(report.at("exit_code").as_integer(), 5) << report.at("error").dump();
  EXPECT_EQ(report.at("error").at("kind").as_string(), "non-finite");
  EXPECT_FALSE(report.at("error").at("rank").is_null());
}

}  // namespace
}  // namespace strait
