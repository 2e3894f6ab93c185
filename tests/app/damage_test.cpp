// Checkpoints that were damaged, and disks that are full or read-only: the exit codes of INTERFACE,
// the file named, and what was saved before untouched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/checkpoint/checkpoint.h"
#include "tests/app/program.h"
#include "tests/paths.h"

namespace strait {
namespace {

namespace fs = std::filesystem;
using test::Ran;
using test::run;
using test::TemporaryFolder;
using ::testing::HasSubstr;

class Damage : public ::testing::Test {
 protected:
  Ran train(const std::string& steps, const std::string& resume) {
    return run({"train", run_file_, "--ranks", "2", "--set", "output.run_dir=" + run_dir_, "--set",
                "train.steps=" + steps, "--set", "checkpoint.resume=" + resume, "--set",
                "checkpoint.every_steps=2"},
               folder_.path() + "/report.json");
  }
  /// Every file of a checkpoint with its contents.
  static std::map<std::string, std::string> contents(const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(checkpoint))
      files[entry.path().filename().string()] = read_file(entry.path().string());
    return files;
  }
  static void overwrite(const std::string& path, const std::string& contents) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << contents;
  }

  TemporaryFolder folder_;
  std::string run_file_ = test::small_run_file(folder_.path());
  std::string run_dir_ = folder_.path() + "/run";
};

TEST_F(Damage, AFlippedByteInAnyFileIsFoundAndTheFileNamed) {
  ASSERT_EQ(train("4", "never").exit_code, 0);
  const std::string newest = run_dir_ + "/checkpoints/step-00000004";
  const auto files = contents(newest);
  ASSERT_EQ(files.size(), 5u);
  for (const auto& [name, whole] : files) {
    for (const size_t place : {size_t{0}, whole.size() / 2, whole.size() - 1}) {
      std::string changed = whole;
      changed[place] = static_cast<char>(changed[place] ^ 1);
      overwrite(newest + "/" + name, changed);
      for (const std::string& resume : {newest, std::string("auto")}) {
        const Ran ran = train("6", resume);
        EXPECT_EQ(ran.exit_code, 2) << name << " " << place << " " << ran.err;
        EXPECT_THAT(ran.err, HasSubstr(newest + "/" + name));
        EXPECT_THAT(ran.report.at("error").at("file").dump(), HasSubstr("step-00000004"));
      }
      const Ran sampled = run({"sample", newest, "--prompt", "s"});
      EXPECT_EQ(sampled.exit_code, 2) << name << " " << place;
      EXPECT_THAT(sampled.err, HasSubstr(newest + "/" + name));
    }
    overwrite(newest + "/" + name, whole);
  }
  EXPECT_EQ(train("6", "auto").exit_code, 0);
}

TEST_F(Damage, AMissingShardIsFoundAndTheNewestWholeCheckpointNamed) {
  ASSERT_EQ(train("4", "never").exit_code, 0);
  const std::string newest = run_dir_ + "/checkpoints/step-00000004";
  fs::remove(newest + "/rank-00001.safetensors");
  for (const std::string& resume : {newest, std::string("auto")}) {
    const Ran ran = train("6", resume);
    EXPECT_EQ(ran.exit_code, 2) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(newest + "/rank-00001.safetensors"));
  }
  EXPECT_THAT(train("6", "auto").err, HasSubstr(run_dir_ + "/checkpoints/step-00000002"));
  const Ran older = train("6", run_dir_ + "/checkpoints/step-00000002");
  EXPECT_EQ(older.exit_code, 0) << older.err;
  EXPECT_EQ(older.report.at("resumed_from_step").as_integer(), 2);
}

/// Runs a shell command where it may mount; the exit code.
int in_own_mounts(const std::string& command) {
  return WEXITSTATUS(std::system(("unshare -rm bash -c '" + command + "'").c_str()));
}

/// A run of 2 steps is moved to a file system made by `mount`, then `before` is done, then it goes
/// on to step 40. The exit code of that, output in `log`; the run folder comes back to `run_dir`.
int go_on_in(const std::string& mount, const std::string& before, const std::string& run_file,
             const std::string& run_dir, const std::string& log) {
  const std::string disk = run_dir + "-disk";
  fs::create_directories(disk);
  return in_own_mounts("set -e; " + mount + " " + disk + "; cp -r " + run_dir + " " + disk +
                       "/run; " + before + "; set +e; " + test::in_build("strait train ") +
                       run_file + " --ranks 2 --set output.run_dir=" + disk +
                       "/run --set checkpoint.resume=auto --set train.steps=40 --set "
                       "checkpoint.every_steps=2 >" +
                       log + " 2>&1; code=$?; rm -rf " + run_dir + "; cp -r " + disk + "/run " +
                       run_dir + "; exit $code");
}

TEST_F(Damage, FullAndReadOnlyDisksEndWithSixAndKeepWhatWasSaved) {
  if (in_own_mounts("mount -t tmpfs none /tmp") != 0)
    GTEST_SKIP() << "this user may not mount; a limit on file sizes stands for the full disk in "
                    "BadInput.AFullDiskEndsWithSixAndKeepsTheOldCheckpoint";
  ASSERT_EQ(train("2", "never").exit_code, 0);
  const std::string log = folder_.path() + "/log";
  const std::string old = run_dir_ + "/checkpoints/step-00000002";
  const auto before = contents(old);
  // Room for about three more checkpoints; the disk fills in the middle of one.
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(run_dir_))
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size()) + 4096;
  const std::string mount = "mount -t tmpfs -o size=" + std::to_string(4 * bytes) + " none";
  EXPECT_EQ(go_on_in(mount, "true", run_file_, run_dir_, log), 6) << read_file(log);
  EXPECT_THAT(read_file(log), HasSubstr("No space left"));
  EXPECT_EQ(contents(old), before);
  const auto newest = checkpoint::latest_complete(run_dir_);
  ASSERT_TRUE(newest.has_value());
  EXPECT_GT(*newest, old) << "the disk had room for one more";

  EXPECT_EQ(go_on_in("mount -t tmpfs none", "mount -o remount,ro " + run_dir_ + "-disk", run_file_,
                     run_dir_, log),
            6)
      << read_file(log);
  EXPECT_THAT(read_file(log), HasSubstr("Read-only file system"));
  EXPECT_EQ(contents(old), before);
  const Ran resumed = train("40", "auto");
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

}  // namespace
}  // namespace strait
