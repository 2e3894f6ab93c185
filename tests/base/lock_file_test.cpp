// One owner at a time, whoever comes, dies or stands still in between.
#include "strait/base/lock_file.h"
#include "strait/base/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/process_identity.h"
#include "tests/pace.h"
#include "tests/sanitized.h"
#include "tests/unprivileged.h"

namespace strait {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LockFileTest : public ::testing::Test {
 protected:
  LockFileTest()
      : folder_(fs::temp_directory_path() / ("strait-lock-" + std::to_string(::getpid()))),
        path_(folder_ / "lock") {
    fs::create_directories(folder_);
  }
  ~LockFileTest() override { fs::remove_all(folder_); }

  /// Leaves the lock, or the successor of `after`, as its owner would who dies now.
  void leave(const ProcessIdentity& owner, const std::string& token,
             const std::string& after = "") const {
    const std::string file = after.empty() ? path_.string() : path_.string() + ".after-" + after;
    std::ofstream(file) << Json::object({{"token", token}, {"owner", to_json(owner)}}).dump();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    return names;
  }
  /// How many of `count` threads that come at once get the lock; those hold it until all have
  /// tried.
  int winners(int count) const {
    std::atomic<int> won{0};
    std::barrier start(count), tried(count);
    std::vector<std::jthread> threads;
    for (int i = 0; i < count; ++i)
      threads.emplace_back([&] {
        std::unique_ptr<LockFile> lock;
        start.arrive_and_wait();
        try {
          lock = std::make_unique<LockFile>(path_, "the folder");
          ++won;
        } catch (const UserError&) {
        }
        tried.arrive_and_wait();
      });
    threads.clear();
    return won;
  }

  fs::path folder_, path_;
};

ProcessIdentity dead_process() {
  ProcessIdentity owner = this_process();
  owner.start_tick -= 1;  // another process had this id before
  return owner;
}

ProcessIdentity process_elsewhere() {
  ProcessIdentity owner = this_process();
  owner.host = "node7";
  owner.kernel = "another";
  return owner;
}

TEST_F(LockFileTest, ASecondOwnerIsRefusedAndToldTheFirst) {
  const LockFile first(path_, "the folder");
  const std::string before = read_file(path_);
  try {
    const LockFile second(path_, "the folder");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("the folder is in use by process " + std::to_string(::getpid()) +
                          " on host " + this_process().host));
  }
  EXPECT_EQ(read_file(path_), before);
  EXPECT_THAT(files(), ::testing::ElementsAre("lock"));
}

TEST_F(LockFileTest, NothingIsLeftWhenItIsGivenBack) {
  { const LockFile lock(path_, "the folder"); }
  EXPECT_TRUE(files().empty());
  const LockFile again(path_, "the folder");
}

TEST_F(LockFileTest, OfManyAtOnceExactlyOneWins) {
  for (int round = 0; round < test::repetitions(200, 30); ++round)
    ASSERT_EQ(winners(8), 1) << round;
  EXPECT_TRUE(files().empty());
}

TEST_F(LockFileTest, OfManyThatFindADeadOwnerExactlyOneWins) {
  for (int round = 0; round < test::repetitions(200, 30); ++round) {
    leave(dead_process(), "a");
    ASSERT_EQ(winners(8), 1) << round;
  }
  EXPECT_TRUE(files().empty());
}

TEST_F(LockFileTest, ASuccessorThatDiedOnItsWayIsFollowed) {
  leave(dead_process(), "a");
  leave(dead_process(), "b", "a");
  leave(dead_process(), "c", "b");
  EXPECT_EQ(winners(4), 1);
  EXPECT_TRUE(files().empty());
  leave(dead_process(), "a");
  leave(this_process(), "b", "a");
  EXPECT_THROW(LockFile(path_, "the folder"), UserError);
}

TEST_F(LockFileTest, AnOwnerOnAnotherHostLivesAsLongAsItsFileIsTouched) {
  const LockTimes times{0.02, test::deadline_here(0.3)};
  leave(process_elsewhere(), "a");
  {
    std::jthread owner([&](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        fs::last_write_time(path_, fs::file_time_type::clock::now());
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    try {
      const LockFile lock(path_, "the folder", times);
      ADD_FAILURE() << "taken from an owner that lives";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr("on host node7"));
    }
  }
  const LockFile lock(path_, "the folder", times);
}

TEST_F(LockFileTest, TheOwnerTouchesItsFile) {
  const LockFile lock(path_, "the folder", {0.01, 60});
  const auto before = fs::last_write_time(path_);
  const double limit = now_seconds() + 60;
  while (fs::last_write_time(path_) == before && now_seconds() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_GT(fs::last_write_time(path_), before);
}

TEST_F(LockFileTest, AFileThatNamesNobodyIsHeldOnlyWhileItIsTouched) {
  std::ofstream(path_.string()) << "torn";
  const LockFile lock(path_, "the folder", {10, 0.1});
}

TEST_F(LockFileTest, ALockThatMayNotBeReadIsToldAtOnce) {
  leave(process_elsewhere(), "a");
  const test::Forbidden forbidden(path_);
  const double began = now_seconds();
  try {
    const LockFile lock(path_, "the folder");
    ADD_FAILURE() << "taken";
  } catch (const InputOutputError& error) {
    EXPECT_EQ(error.what(), "cannot tell who uses the folder: cannot read " + path_.string() +
                                ": Permission denied");
  }
  EXPECT_LT(now_seconds() - began, 30);
}

TEST_F(LockFileTest, AKilledOwnersLockIsTakenAtOnce) {
  for (int round = 0; round < 20; ++round) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const LockFile lock(path_, "the folder");
      (void)!::write(ready[1], "x", 1);
      ::pause();
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_THROW(LockFile(path_, "the folder"), UserError);
    ::kill(child, SIGKILL);
    while (still_runs(identity_from_json(Json::parse(read_file(path_), "lock").at("owner"))) ==
           true) {
    }
    EXPECT_NO_THROW(LockFile(path_, "the folder"));  // the dead child is not even reaped yet
    ::waitpid(child, nullptr, 0);
    ::close(ready[0]);
    ::close(ready[1]);
  }
}

TEST_F(LockFileTest, WritesThatAKillCutShortAreRemovedAndNothingElse) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::string dead = ".tmp-" + std::to_string(child);
  const std::string running = ".tmp-" + std::to_string(::getpid());
  for (const std::string& name : {"run.toml" + dead, "run.toml" + running, dead + ".toml",
                                  std::string("run.toml"), std::string("a.tmp-")})
    std::ofstream(folder_ / name) << name;
  fs::create_directory(folder_ / ("folder" + dead));
  remove_interrupted_writes(folder_);
  EXPECT_THAT(files(), ::testing::UnorderedElementsAre("run.toml" + running, dead + ".toml",
                                                       "run.toml", "a.tmp-", "folder" + dead));
  EXPECT_NO_THROW(remove_interrupted_writes(folder_ / "none"));
}

TEST_F(LockFileTest, AFolderThatCannotBeWrittenIsAnInputOutputError) {
  EXPECT_THROW(LockFile(folder_ / "none" / "lock", "the folder"), InputOutputError);
}

}  // namespace
}  // namespace strait
