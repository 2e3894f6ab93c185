// random_runs FIRST COUNT: random run files number FIRST to FIRST + COUNT - 1 through verify,
// simulate and plan. Prints each that fails as no run may: exit 1, or longer than ten seconds.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "tests/fuzz/random_runs.h"

int main(int argc, char** argv) {
  using namespace strait;
  if (argc != 3) return 2;
  const auto first = static_cast<uint64_t>(std::atoll(argv[1]));
  const auto count = static_cast<uint64_t>(std::atoll(argv[2]));
  const std::string file = (std::filesystem::temp_directory_path() /
                            fmt::format("strait-random-runs-{}.toml", ::getpid()))
                               .string();
  write_file_atomically(file, strait::testing::base_run(file));
  std::map<int, uint64_t> codes;
  bool failed = false;
  double slowest = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const auto result = strait::testing::try_random_run(seed, file);
    ++codes[result.code];
    slowest = std::max(slowest, result.seconds);
    if (result.code != 1 && result.seconds < 10) continue;
    failed = true;
    std::printf("%llu: exit %d, %.1f s:%s\n%s", static_cast<unsigned long long>(seed), result.code,
                result.seconds, result.command.c_str(), result.error.c_str());
  }
  for (const auto& [code, times] : codes)
    std::printf("exit %d: %llu\n", code, static_cast<unsigned long long>(times));
  std::filesystem::remove(file);
  std::printf("slowest: %.2f s\n", slowest);
  return failed ? 1 : 0;
}
