// Run files over the whole table of keys through verify, simulate and plan: refused or answered,
// never a failure of our own and never without an end. tests/random_runs tries more of them.
#include <gtest/gtest.h>

#include <map>

#include "tests/data/temporary_folder.h"
#include "tests/fuzz/random_runs.h"
#include "tests/sanitized.h"

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

/// Seconds of processors that a command takes to end with `code`.
double seconds_until(int code, const std::vector<std::string>& arguments) {
  std::ostringstream out, error;
  const std::clock_t begin = std::clock();
  EXPECT_EQ(cli::run_command(arguments, cli::program_commands(), {out, error}), code)
      << error.str();
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::printf("%s: %.2f s\n", arguments[0].c_str(), seconds);
  return seconds;
}

TEST(RandomRuns, TheMostLayersAndMicroStepsAreAnsweredOrRefused) {
  const testing::TemporaryFolder folder;
  const std::string file = folder.path() + "/run.toml";
  write_file_atomically(file, testing::base_run(file));
  const std::string deep = "model.shape.layers=100000";
  const std::string narrow =
      "model.shape={layers=512, width=16, heads=2, kv_heads=2, ffn_width=40, context=12}";
  // Ten seconds here; on a slow machine 30 times what a tenth of the layers takes.
  const double tenth = seconds_until(0, {"verify", file, "--set", "model.shape.layers=10000"});
  const double limit = std::max(10 * test::kSlowdown, 30 * tenth);
  std::printf("verifying 10,000 layers takes %.2f s, the limit is %.1f s\n", tenth, limit);
  EXPECT_LT(seconds_until(0, {"verify", file, "--set", deep}), limit);
  EXPECT_LT(seconds_until(0, {"simulate", file, "--set", deep}), limit);
  EXPECT_LT(seconds_until(2, {"plan", file, "--ranks", "1", "--set", deep}), limit);
  EXPECT_LT(seconds_until(0, {"plan", file, "--ranks", "1", "--set", narrow}), limit);
  EXPECT_LT(seconds_until(2, {"verify", file, "--set", deep, "--set", "train.micro_batch_size=1",
                              "--set", "train.global_batch_size=100"}),
            limit);
}

}  // namespace
}  // namespace strait
