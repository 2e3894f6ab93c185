// Starts the tests of tests/mpi_ranks under mpirun: worlds x algorithms, on one host and on
// several.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>

#include "tests/paths.h"

namespace strait::comm {
namespace {

void expect_passes(const std::string& command_line) {
  const std::string command = "timeout 120 " + command_line + " 2>&1";
  FILE* output = ::popen(command.c_str(), "r");
  ASSERT_NE(output, nullptr);
  std::string text;
  char buffer[4096];
  for (size_t bytes; (bytes = std::fread(buffer, 1, sizeof(buffer), output)) > 0;)
    text.append(buffer, bytes);
  const int status = ::pclose(output);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
  EXPECT_NE(text.find("PASSED"), std::string::npos) << text;
}

class MpiRanks : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(MpiRanks, PassTheirTests) {
  const auto& [ranks, algorithm] = GetParam();
  expect_passes("mpirun --allow-run-as-root --oversubscribe -n " + std::to_string(ranks) + " " +
                test::in_build("tests/mpi_ranks ") + algorithm);
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<int, std::string>>& test) {
  return std::get<1>(test.param) + std::to_string(std::get<0>(test.param));
}

/// Hosts, ranks of each, the algorithm, and "narrow" where messages are to take turns, "slow" where
/// they are to go in pieces without.
class MpiHosts : public ::testing::TestWithParam<std::tuple<int, int, std::string>> {};

TEST_P(MpiHosts, PassTheirTests) {
  if (::geteuid() != 0) GTEST_SKIP() << "emulated hosts need root";
  const auto& [hosts, ranks, arguments] = GetParam();
  expect_passes(test::in_source("bench/netlab --rate none --hosts ") + std::to_string(hosts) +
                " --ranks-per-host " + std::to_string(ranks) + " -- " +
                test::in_build("tests/mpi_ranks ") + arguments);
}

INSTANTIATE_TEST_SUITE_P(
    Hosts, MpiHosts,
    ::testing::Values(std::tuple(4, 1, "direct"), std::tuple(4, 1, "direct narrow"),
                      std::tuple(3, 1, "direct slow"), std::tuple(3, 1, "ring narrow"),
                      std::tuple(2, 2, "direct narrow"), std::tuple(3, 2, "hierarchical narrow")));

INSTANTIATE_TEST_SUITE_P(Grid, MpiRanks,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4),
                                            ::testing::Values("direct", "ring", "recursive",
                                                              "hierarchical")),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Eight, MpiRanks,
                         ::testing::Combine(::testing::Values(8),
                                            ::testing::Values("direct", "hierarchical")),
                         case_name);

}  // namespace
}  // namespace strait::comm
