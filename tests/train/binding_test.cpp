// A bound rank computes on its cores alone, and what serves its transfers does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>

#include "small_run.h"
#include "strait/base/file.h"
#include "strait/threads/cores.h"
#include "strait/threads/team.h"

namespace strait {
namespace {

/// Cores of each thread of this process that is inside the kernel's table now, as the kernel writes
/// them.
std::multiset<std::string> cores_of_threads() {
  constexpr std::string_view kLabel = "Cpus_allowed_list:\t";
  std::multiset<std::string> found;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "status");
    for (std::string line; std::getline(file, line);)
      if (line.starts_with(kLabel)) found.insert(line.substr(kLabel.size()));
  }
  return found;
}

/// Cores of the two threads that compute for the calling one.
std::set<std::vector<int>> cores_of_team() {
  std::array<std::vector<int>, 2> found;
  run_team(2, [&](int index, int) { found[static_cast<size_t>(index)] = usable_cores(); });
  return {found.begin(), found.end()};
}

Job job_of(const std::string& folder, int64_t ranks, std::vector<std::string> sets) {
  sets.insert(sets.end(), {"train.steps=3", "output.run_dir=" + folder + "/run"});
  return make_job(test::small_run(folder, sets), ranks);
}

void run(const Job& job, const train::Hooks& hooks) {
  const train::Outcome outcome = test::outcome_of(job, hooks);
}

TEST(Binding, ComputeThreadsKeepToTheCoresOfTheirRank) {
  const std::vector<int> all = usable_cores(), last = {all.back()};
  const test::TemporaryFolder folder;
  Job job = job_of(folder.path(), 2, {"runtime.threads_per_rank=2", "runtime.bind=none"});
  ASSERT_TRUE(job.binding.cpus.empty());
  job.binding.cpus = {{0, last}, {1, all}};
  std::mutex mutex;
  std::map<int64_t, std::set<std::vector<int>>> seen;
  train::Hooks hooks;
  hooks.before_op = [&](int64_t rank, const runtime::Instance&) {
    const auto team = cores_of_team();
    const std::lock_guard<std::mutex> lock(mutex);
    seen[rank].insert(team.begin(), team.end());
  };
  run(job, hooks);
  EXPECT_EQ(seen[0], std::set<std::vector<int>>{last});
  EXPECT_EQ(seen[1], std::set<std::vector<int>>{all});
}

/// Why two ranks cannot be bound here; "" = they can.
std::string obstacle() {
  const std::optional<CoreTree> host = read_core_tree();
  const std::optional<CoreTree> usable =
      host ? restrict_cores(*host, usable_cores()) : std::nullopt;
  return usable && usable->num_cores() >= 2 ? "" : "needs hwloc and two cores";
}

TEST(Binding, GivesRanksCoresOfTheirOwnAndLeavesTransfersFree) {
  if (!obstacle().empty()) GTEST_SKIP() << obstacle();
  const std::vector<int> all = usable_cores();
  const test::TemporaryFolder folder;
  const Job job = job_of(folder.path(), 2, {"runtime.threads_per_rank=1", "runtime.bind=core"});
  ASSERT_EQ(job.binding.cpus.size(), 2u) << job.binding.text;
  std::mutex mutex;
  std::multiset<std::string> threads;  // most that were seen together
  train::Hooks hooks;
  hooks.before_op = [&](int64_t rank, const runtime::Instance&) {
    EXPECT_EQ(usable_cores(), job.binding.cpus.at(rank));
    const std::lock_guard<std::mutex> lock(mutex);
    if (auto now = cores_of_threads(); now.size() >= threads.size()) threads = std::move(now);
  };
  run(job, hooks);
  for (const auto& [rank, cpus] : job.binding.cpus)
    EXPECT_EQ(threads.count(core_ranges(cpus)), 1u) << "rank " << rank;
  EXPECT_GT(threads.count(core_ranges(all)), 1u);  // this thread, and what transfers
}

TEST(Binding, TheLossesAreThoseOfARunThatIsNotBound) {
  if (!obstacle().empty()) GTEST_SKIP() << obstacle();
  const test::TemporaryFolder folder;
  const auto losses = [&](const std::string& bind) {
    return test::train_small(
               test::small_run(folder.path(), {"train.steps=4", "runtime.bind=" + bind}), 2,
               folder.path() + "/" + bind)
        .losses;
  };
  EXPECT_EQ(losses("core"), losses("none"));
}

}  // namespace
}  // namespace strait
