// Replicas of processes: the bits and bytes of those of threads.
#include <gtest/gtest.h>

#include "tests/app/mpi_and_threads.h"

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

}  // namespace
}  // namespace strait
