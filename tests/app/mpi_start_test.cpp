// Ranks under mpirun that are killed or stopped before the first step, most often before they have
// a world: the others do not wait for ever. STRAIT_MPI_FAULT_RUNS=200 makes 20 runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "strait/base/random.h"
#include "tests/app/mpi_job.h"
#include "tests/pace.h"

namespace strait {
namespace {

using test::MpiJob;
using test::TemporaryFolder;
using ::testing::HasSubstr;

/// A rank is lost while the run is prepared, most often before the ranks have a world.
void lose_at_start(int number, const std::string& parent, const std::string& run_file) {
  const RandomStream stream(2026, "mpi faults at the start", static_cast<uint64_t>(number));
  const int64_t ranks = 2 + number % 3;
  const auto lost = static_cast<int64_t>(stream.below(0, static_cast<uint64_t>(ranks)));
  const bool stops = number % 2 == 0;
  const std::string folder = parent + "/start" + std::to_string(number), run_dir = folder + "/run";
  SCOPED_TRACE("start " + std::to_string(number) + ": rank " + std::to_string(lost) + " of " +
               std::to_string(ranks) + (stops ? " stopped" : " killed"));
  std::filesystem::create_directories(folder);
  MpiJob job({"train", run_file, "--set", "output.run_dir=" + run_dir, "--set",
              "train.global_batch_size=12", "--set", "train.steps=100000", "--set",
              "runtime.deadline_seconds=2"},
             ranks, folder, true);
  auto processes = job.find_all();
  ASSERT_EQ(processes.size(), static_cast<size_t>(ranks));
  // The folder is made when all have come out of MPI_Init, which has a limit of its own.
  while (job.launcher().running() && !std::filesystem::exists(run_dir)) test::sleep_seconds(0.001);
  test::sleep_seconds(stream.uniform(1) * 0.1);
  const pid_t process = processes[lost];
  ::kill(process, stops ? SIGSTOP : SIGKILL);
  processes.erase(lost);
  constexpr double kMeeting = 10;  // the least that ranks wait for each other then
  const double limit = kMeeting + test::deadline_here(5);
  EXPECT_LE(job.wait_for_end(processes, limit + 3), limit);
  if (stops) ::kill(process, SIGKILL);
  EXPECT_TRUE(job.ends_within(15)) << "the launcher stays";
  for (const auto& [rank, survivor] : processes) {
    EXPECT_THAT(job.errors(rank), HasSubstr("(rank " + std::to_string(lost))) << "rank " << rank;
    EXPECT_EQ(job.code(rank), 4);
  }
}

TEST(MpiStart, ARankThatIsLostWhileTheRunIsPreparedIsNamed) {
  const TemporaryFolder folder;
  const std::string run_file = test::small_run_file(folder.path());
  const char* text = std::getenv("STRAIT_MPI_FAULT_RUNS");
  const int runs = text == nullptr ? 2 : std::max(2, std::atoi(text) / 10);
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 2; ++worker)
    threads.emplace_back([&] {
      for (int number = next++; number < runs; number = next++)
        lose_at_start(number, folder.path(), run_file);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace strait
