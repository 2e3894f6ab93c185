// Launchers' variables, told apart and checked.
#include "strait/comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/comm/thread_ranks.h"

namespace strait::comm {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

Launch launch_of(const Variables& variables) {
  return find_launch([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Launch, FindsWhoStartedTheProcess) {
  EXPECT_FALSE(launch_of({}).launched());
  const Launch open_mpi = launch_of({{"OMPI_COMM_WORLD_RANK", "3"},
                                     {"OMPI_COMM_WORLD_SIZE", "4"},
                                     {"SLURM_PROCID", "0"},
                                     {"SLURM_NTASKS", "1"},
                                     {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(open_mpi.launcher, "Open MPI");
  EXPECT_EQ(open_mpi.rank, 3);
  EXPECT_EQ(open_mpi.size, 4);
  EXPECT_EQ(launch_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).launcher, "PMI");
  EXPECT_EQ(
      launch_of({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}}).launcher,
      "Slurm");
  // A shell inside an allocation is no step.
  EXPECT_FALSE(launch_of({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}).launched());
}

TEST(Launch, TellsOnHowManyHosts) {
  Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "6"}};
  EXPECT_EQ(launch_of(open_mpi).hosts, 1);
  open_mpi["SLURM_NNODES"] = "8";  // of the allocation that mpirun runs in
  EXPECT_EQ(launch_of(open_mpi).hosts, 8);
  open_mpi["OMPI_MCA_orte_num_nodes"] = "3";
  EXPECT_EQ(launch_of(open_mpi).hosts, 3);
  EXPECT_EQ(launch_of({{"SLURM_PROCID", "1"},
                       {"SLURM_NTASKS", "4"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_NNODES", "4"}})
                .hosts,
            4);
}

TEST(Launch, RefusesWhatContradictsItself) {
  EXPECT_THAT(message_of<UserError>([] {
                launch_of({{"PMI_RANK", "x"}, {"PMI_SIZE", "2"}});
              }),
              HasSubstr("PMI_RANK is \"x\""));
  EXPECT_THAT(message_of<UserError>([] {
                launch_of({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}});
              }),
              HasSubstr("PMI_RANK is 2, but PMI_SIZE is 2"));
  const Launch slurm =
      launch_of({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "0"}});
  check_launch(slurm, 4);
  EXPECT_THAT(message_of<UserError>([&] { check_launch(slurm, 1); }),
              HasSubstr("SLURM_NTASKS says 4 ranks, but MPI joined 1"));
}

TEST(Launch, RanksShareTheCoresThatTheyMayUse) {
  const auto on = [](const std::string& host, std::vector<int> cores) {
    return CoreShare{host, std::move(cores)};
  };
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(cores_per_rank({on("a", all)}), 8);
  EXPECT_EQ(cores_per_rank({on("a", all), on("a", all)}), 4);                         // not bound
  EXPECT_EQ(cores_per_rank({on("a", all), on("a", all), on("a", all)}), 2);           // 8 / 3
  EXPECT_EQ(cores_per_rank({on("a", {0, 1, 2, 3}), on("a", {4, 5, 6, 7})}), 4);       // by socket
  EXPECT_EQ(cores_per_rank({on("a", {0}), on("a", {1})}), 1);                         // by core
  EXPECT_EQ(cores_per_rank({on("a", all), on("b", all)}), 8);                         // machines
  EXPECT_EQ(cores_per_rank({on("a", all), on("b", {0, 1}), on("b", {0, 1})}), 1);     // the least
  EXPECT_EQ(cores_per_rank({on("a", {0, 1}), on("a", {0, 1}), on("a", {0, 1})}), 1);  // crowded
}

TEST(Cores, QuotasLimitWhatRanksCountOnAndUseTogether) {
  const auto held = [](std::vector<int> cores, double quota, const std::string& group) {
    return CoreShare{"a", std::move(cores), {quota, group}};
  };
  const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::vector<CoreShare> container = {held(all, 4, "c"), held(all, 4, "c")};
  EXPECT_EQ(cores_per_rank(container), 2);
  EXPECT_EQ(cores_together(container), 4);
  const std::vector<CoreShare> tasks = {held(all, 2.5, "t0"), held(all, 2.5, "t1")};
  EXPECT_EQ(cores_per_rank(tasks), 2);
  EXPECT_EQ(cores_together(tasks), 4);
  // Two to a core, each held to half of it: none uses what another one leaves.
  const std::vector<CoreShare> halves = {held({0}, 0.5, "r0"), held({0}, 0.5, "r1"),
                                         held({1}, 0.5, "r2"), held({1}, 0.5, "r3")};
  EXPECT_EQ(cores_per_rank(halves), 1);
  EXPECT_EQ(cores_together(halves), 4);
  // Quotas that promise more than there is: the ranks take turns.
  EXPECT_EQ(cores_together({held({0}, 0.8, "r0"), held({0}, 0.8, "r1")}), 1);
  const CoreShare free{"a", {0, 1}, {}};
  EXPECT_EQ(cores_together({free, free, free, free}), 2);
  EXPECT_EQ(cores_together({free, held({0, 1}, 0.5, "r1")}), 2);
}

}  // namespace
}  // namespace strait::comm
