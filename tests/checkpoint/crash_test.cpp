// What stays behind when the process is killed or the disk is full in the middle of a save.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/snapshot.h"
#include "tests/checkpoint/example_run.h"
#include "tests/pace.h"

namespace strait::checkpoint {
namespace {

constexpr int64_t kRanks = 2;

/// Runs `body` in a forked child, which never returns into the test program.
template <class Body>
pid_t fork_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(99);
    }
    ::_exit(0);
  }
  return child;
}

/// Writes a byte to `begun`, then saves generation after generation, half of them asynchronously,
/// until it is killed. With `same_step` every save replaces the one before it; otherwise step =
/// generation.
[[noreturn]] void save_for_ever(const std::string& run_dir, int64_t first_generation,
                                bool same_step, int begun) {
  clean_partial(run_dir);
  if (::write(begun, "!", 1) != 1) ::_exit(95);
  const std::string token = make_session_token();
  on_ranks(kRanks, [&](int64_t rank) {
    SessionOptions options = example_session(run_dir, rank, kRanks, 60.0);
    options.token = token;
    SaveSession session(options);
    SnapshotWriter writer(session);
    for (int64_t generation = first_generation;; ++generation) {
      const int64_t step = same_step ? 1 : generation;
      const ExampleShards shards(generation, rank, kRanks);
      std::optional<SaveDescription> description;
      if (rank == 0) description = example_description(step, kRanks, generation);
      if (generation % 2 == 0) {
        writer.start(step, shards.views, std::move(description));
        writer.finish();
      } else {
        session.save(step, shards.views, std::move(description));
      }
    }
  });
  ::_exit(98);
}

/// Kills such a child `after` it began to save.
void kill_after(const std::string& run_dir, int64_t first_generation, bool same_step,
                std::chrono::duration<double> after) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child =
      fork_child([&] { save_for_ever(run_dir, first_generation, same_step, ends[1]); });
  ASSERT_GT(child, 0);
  ::close(ends[1]);
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  std::this_thread::sleep_for(after);
  ::kill(child, SIGKILL);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);
}

/// Seconds that one save takes here and now: the shortest of three.
double save_seconds() {
  double shortest = 1e9;
  for (int64_t step = 1; step <= 3; ++step) {
    const TemporaryFolder run;
    const double begin = now_seconds();
    on_ranks(kRanks, [&](int64_t rank) {
      SaveSession session(example_session(run.path(), rank, kRanks));
      const ExampleShards shards(step, rank, kRanks);
      std::optional<SaveDescription> description;
      if (rank == 0) description = example_description(step, kRanks, step);
      session.save(step, shards.views, std::move(description));
    });
    shortest = std::min(shortest, now_seconds() - begin);
  }
  return shortest;
}

/// Kills a saving child at random moments, `rounds` times, and checks the latest checkpoint each
/// time.
void kill_at_random(bool same_step, int rounds) {
  const TemporaryFolder run;
  const RandomStream random(same_step ? 2 : 1, "kill");
  // On average a child ends one save and is killed within the second: the time follows the saves
  // that the last child ended, as they may take longer, or less, than those that are measured here.
  double longest_seconds = 3.0 * save_seconds();
  int64_t newest = 0;
  int interrupted = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::chrono::duration<double> after(longest_seconds *
                                              random.uniform(static_cast<uint64_t>(round)));
    ASSERT_NO_FATAL_FAILURE(kill_after(run.path(), newest + 1, same_step, after));
    const auto latest = latest_complete(run.path());
    if (!latest) {
      ASSERT_EQ(newest, 0) << "the checkpoints that were there are gone";
      longest_seconds *= 1.5;
      continue;
    }
    const Manifest manifest = read_manifest(*latest);
    const int64_t generation = manifest.extra.at("generation").as_integer();
    ASSERT_EQ(manifest.step, same_step ? 1 : generation);
    ASSERT_GE(generation, newest);
    longest_seconds *= generation == newest ? 1.2 : generation > newest + 3 ? 0.8 : 1;
    newest = generation;
    ASSERT_NO_FATAL_FAILURE(expect_content(*latest, generation));
    for (const std::string& name : checkpoint_entries(run.path()))
      interrupted += name.front() == '.';
  }
  EXPECT_GT(newest, 0) << "no save ever ended";
  EXPECT_GT(interrupted, 0) << "no save was ever interrupted";
  clean_partial(run.path());
  for (const std::string& name : checkpoint_entries(run.path())) EXPECT_NE(name.front(), '.');
  expect_content(run.path(), newest);
}

TEST(Crash, KilledAtRandomMomentsOfNewSaves) { kill_at_random(false, 60); }

TEST(Crash, KilledAtRandomMomentsOfReplacingSaves) { kill_at_random(true, 30); }

int exit_status(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Ranks as processes that share the folder alone: three saves, one of them asynchronous. The rank
/// `killed` never begins the third; the others then exit with 4.
pid_t process_rank(const std::string& run_dir, int64_t rank, int64_t ranks, int64_t killed) {
  const double deadline = killed < 0 ? 60.0 : test::deadline_here(1.0);
  return fork_child([=] {
    SaveSession session(example_session(run_dir, rank, ranks, deadline));
    SnapshotWriter writer(session);
    try {
      for (const int64_t step : {1, 2, 3}) {
        if (step == 3 && rank == killed) ::raise(SIGKILL);
        const ExampleShards shards(step, rank, ranks);
        std::optional<SaveDescription> description;
        if (rank == 0) description = example_description(step, ranks, step);
        if (step == 2) {
          writer.start(step, shards.views, std::move(description));
          writer.finish();
        } else {
          session.save(step, shards.views, std::move(description));
        }
      }
    } catch (const Timeout& error) {
      ::_exit(error.place().rank == killed && error.place().step == 3 ? 4 : 94);
    }
  });
}

TEST(Processes, SaveTogetherAndNameTheOneThatWasKilled) {
  for (const int64_t killed : {-1, 0, 2}) {
    const TemporaryFolder run;
    std::vector<pid_t> children;
    for (int64_t rank = 0; rank < 4; ++rank)
      children.push_back(process_rank(run.path(), rank, 4, killed));
    for (int64_t rank = 0; rank < 4; ++rank)
      EXPECT_EQ(exit_status(children[static_cast<size_t>(rank)]),
                killed < 0 ? 0 : (rank == killed ? 128 + SIGKILL : 4))
          << rank << " of " << killed;
    const int64_t last = killed < 0 ? 3 : 2;
    ASSERT_EQ(latest_complete(run.path()), run.path() + "/checkpoints/" + checkpoint_name(last));
    expect_content(run.path(), last);
  }
}

/// A save in a child whose files may not grow beyond `limit_bytes`, as on a full disk. Its exit
/// status.
int save_with_limit(const std::string& run_dir, rlim_t limit_bytes, const std::string& run_file) {
  const pid_t child = fork_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{limit_bytes, limit_bytes};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(97);
    on_ranks(kRanks, [&](int64_t rank) {
      SaveSession session(example_session(run_dir, rank, kRanks));
      const ExampleShards shards(2, rank, kRanks);
      std::optional<SaveDescription> description;
      if (rank == 0) description = example_description(2, kRanks, 2);
      if (rank == 0) description->texts[1].contents = run_file;
      try {
        session.save(2, shards.views, std::move(description));
      } catch (const InputOutputError& error) {
        if (rank == 0)
          ::_exit(std::string(error.what()).find(run_dir) == std::string::npos ? 96 : 6);
        ::sleep(60);  // rank 0 reports
      }
    });
  });
  return exit_status(child);
}

TEST(Crash, FullDiskLeavesTheOldCheckpoint) {
  const TemporaryFolder run;
  const std::string old = save_example(run.path(), 1, kRanks);
  const auto rank_bytes =
      static_cast<rlim_t>(std::filesystem::file_size(old + "/rank-00000.safetensors"));
  const auto manifest_bytes =
      static_cast<rlim_t>(std::filesystem::file_size(old + "/manifest.json"));
  ASSERT_LT(rank_bytes, manifest_bytes) << "the limits below meet the manifest too";
  const std::string long_text(2 * manifest_bytes, '#');
  const auto intact = [&] {
    EXPECT_THAT(checkpoint_entries(run.path()), ::testing::ElementsAre("step-00000001"));
    expect_content(run.path(), 1);
  };
  // In the header, in the data, in the last byte; then in the manifest.
  for (const rlim_t limit : {rlim_t{0}, rlim_t{1}, rlim_t{100}, rank_bytes / 2, rank_bytes - 1,
                             rank_bytes + 1, manifest_bytes - 100}) {
    EXPECT_EQ(save_with_limit(run.path(), limit, "version = 1\n"), 6) << limit;
    intact();
  }
  EXPECT_EQ(save_with_limit(run.path(), manifest_bytes + 100, long_text), 6) << "in run.toml";
  intact();
  EXPECT_EQ(save_with_limit(run.path(), manifest_bytes + 100, "version = 1\n"), 0) << "enough room";
  expect_content(run.path(), 2);
}

}  // namespace
}  // namespace strait::checkpoint
