// Run files over the whole table of keys through verify, simulate and plan: refused or answered,
// never a failure of our own and never without an end. tests/random_runs tries more of them.
#include <gtest/gtest.h>

#include <map>

#include "tests/data/temporary_folder.h"
#include "tests/fuzz/random_runs.h"

namespace strait {
namespace {

TEST(RandomRuns, AreRefusedOrAnswered) {
  constexpr uint64_t kRuns = 120;
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() + "/run.toml";
  write_file_atomically(file, testing::base_run(file));
  std::map<int, uint64_t> codes;
  for (uint64_t seed = 0; seed < kRuns; ++seed) {
    const auto result = testing::try_random_run(seed, file);
    ++codes[result.code];
    EXPECT_NE(result.code, 1) << result.command << "\n" << result.error;
    EXPECT_LT(result.seconds, 10) << result.command;
  }
  // Both outcomes are common, or the generator tests little.
  EXPECT_GT(codes[0], kRuns / 20);
  EXPECT_GT(codes[2], kRuns / 20);
}

}  // namespace
}  // namespace strait
