// Starts the tests of tests/mpi_ranks under mpirun: worlds x algorithms.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <tuple>

namespace strait::comm {
namespace {

class MpiRanks : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(MpiRanks, PassTheirTests) {
  const auto& [ranks, algorithm] = GetParam();
  const std::string command = "timeout 120 mpirun --allow-run-as-root --oversubscribe -n " +
                              std::to_string(ranks) + " " STRAIT_BINARY_DIR "/tests/mpi_ranks " +
                              algorithm + " 2>&1";
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

std::string case_name(const ::testing::TestParamInfo<std::tuple<int, std::string>>& test) {
  return std::get<1>(test.param) + std::to_string(std::get<0>(test.param));
}

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
