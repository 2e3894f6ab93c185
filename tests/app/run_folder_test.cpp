// A run folder has one run at a time, goes on only as what it was, and stays as it is when
// finished.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "strait/base/process_identity.h"
#include "tests/app/program.h"
#include "tests/sanitized.h"

namespace strait {
namespace {

namespace fs = std::filesystem;
using test::Child;
using test::run;
using test::TemporaryFolder;
using ::testing::HasSubstr;

/// Name and contents of every file below a folder.
std::map<std::string, std::string> contents_of(const std::string& folder) {
  std::map<std::string, std::string> contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) contents[entry.path()] = read_file(entry.path());
  return contents;
}

class RunFolder : public ::testing::Test {
 protected:
  RunFolder() : file_(test::small_run_file(folder_.path())), run_dir_(folder_.path() + "/run") {}

  std::vector<std::string> arguments(const std::vector<std::string>& sets) const {
    std::vector<std::string> all = {"train", file_, "--set", "output.run_dir=" + run_dir_};
    for (const std::string& set : sets) all.insert(all.end(), {"--set", set});
    return all;
  }
  test::Ran train(const std::vector<std::string>& sets) const {
    return run(arguments(sets), folder_.path() + "/report.json");
  }
  /// Trains five steps, so that there is something to go on from.
  void train_five(const std::vector<std::string>& sets = {}) const {
    std::vector<std::string> all = {"train.steps=5"};
    all.insert(all.end(), sets.begin(), sets.end());
    const auto ran = train(all);
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
  }

  TemporaryFolder folder_;
  std::string file_, run_dir_;
};

TEST_F(RunFolder, ASecondRunIsRefusedByNameAndTheFirstIsNotTouched) {
  Child first(arguments({"train.steps=1000000", "checkpoint.every_steps=1000"}),
              folder_.path() + "/log");
  while (!fs::exists(run_dir_ + "/metrics.jsonl") && first.running()) test::sleep_seconds(0.01);
  ASSERT_TRUE(first.running()) << read_file(folder_.path() + "/log");
  first.stop();
  ASSERT_TRUE(first.running());
  const auto before = contents_of(run_dir_);
  for (const char* resume : {"never", "auto"}) {
    const auto second = train({std::string("checkpoint.resume=") + resume});
    EXPECT_EQ(second.exit_code, 2);
    EXPECT_THAT(second.err, HasSubstr("in use by process " + std::to_string(first.pid()) +
                                      " on host " + this_process().host));
    EXPECT_EQ(second.report.at("error").at("key").as_string(), "output.run_dir");
  }
  EXPECT_EQ(contents_of(run_dir_), before);
  first.signal(SIGCONT);
  first.signal(SIGKILL);
  first.wait();
  EXPECT_EQ(train({"checkpoint.resume=auto", "train.steps=3"}).exit_code, 0);
  EXPECT_FALSE(fs::exists(run_dir_ + "/lock"));
}

TEST_F(RunFolder, AReportWithoutAFolderIsFoundBeforeTheFirstStep) {
  const auto nowhere = run(arguments({}), folder_.path() + "/nowhere/report.json");
  EXPECT_EQ(nowhere.exit_code, 6);
  EXPECT_THAT(nowhere.err, HasSubstr("there is no folder " + folder_.path() + "/nowhere"));
  EXPECT_FALSE(fs::exists(run_dir_));
  const auto within = run(arguments({"train.steps=2"}), run_dir_ + "/report.json");
  EXPECT_EQ(within.exit_code, 0) << within.err;
  EXPECT_EQ(within.report.at("steps").as_integer(), 2);
}

TEST_F(RunFolder, OfTwoThatRaceExactlyOneTrains) {
  for (int64_t round = 0; round < test::repetitions(8, 3); ++round) {
    fs::remove_all(run_dir_);
    const std::string log = folder_.path() + "/log";
    fs::remove(log);
    Child a(arguments({"train.steps=3"}), log), b(arguments({"train.steps=3"}), log);
    std::vector<int> codes = {a.wait(), b.wait()};
    std::sort(codes.begin(), codes.end());
    // The loser meets the winner, or what the winner has left.
    EXPECT_EQ(codes, (std::vector<int>{0, 2})) << read_file(log);
    EXPECT_FALSE(fs::exists(run_dir_ + "/lock"));
  }
}

TEST_F(RunFolder, WhatCouldNotTakeEffectIsRefusedOnResuming) {
  train_five();
  const std::pair<const char*, const char*> refused[] = {
      {"seed=7", "seed = 7 cannot take effect"},
      {"train.precision=bf16", "the nearest valid value is \"fp32\""},
      {"model.shape.heads=4", "model.shape.heads"},
      {"data.tokenizer=byte", "the nearest valid value is \"char\""},
      {"data.tokenizer=bpe:300", "the nearest valid value is \"char\""}};
  const auto before = contents_of(run_dir_);
  for (const auto& [set, message] : refused) {
    std::vector<std::string> sets = {"checkpoint.resume=auto", "train.steps=9", set};
    if (std::string(set).starts_with("model.shape.heads")) sets.push_back("model.shape.kv_heads=4");
    const auto ran = train(sets);
    EXPECT_EQ(ran.exit_code, 2) << set;
    EXPECT_THAT(ran.err, HasSubstr(message)) << set;
  }
  EXPECT_EQ(contents_of(run_dir_), before);
}

TEST_F(RunFolder, WhatTakesEffectIsListed) {
  train_five();
  std::ofstream(folder_.path() + "/text.txt", std::ios::app) << test::small_text(7);
  const auto ran = train({"checkpoint.resume=auto", "train.steps=9", "optimizer.eps=1e-6"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("changed     train.steps: 9, was 5"));
  EXPECT_THAT(ran.out, HasSubstr("changed     optimizer.eps: 1e-06, was 1e-08"));
  EXPECT_THAT(ran.out, HasSubstr("changed     data: "));
  std::vector<std::string> keys;
  for (const Json& change : ran.report.at("resume_changes").as_array())
    keys.push_back(change.at("key").as_string());
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre("train.steps", "optimizer.eps", "data"));
}

TEST_F(RunFolder, AnUnchangedRunListsNothing) {
  train_five({"checkpoint.every_steps=2"});
  fs::remove_all(run_dir_ + "/checkpoints/step-00000005");
  const auto ran = train({"checkpoint.resume=auto", "train.steps=5", "checkpoint.every_steps=2"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.report.at("resume_changes").size(), 0u);
}

TEST_F(RunFolder, WhatAKilledProcessWroteHalfIsRemoved) {
  Child ended({"--version"}, folder_.path() + "/log");
  ended.wait();
  const std::string half = run_dir_ + "/run.toml.tmp-" + std::to_string(ended.pid());
  fs::create_directories(run_dir_);
  std::ofstream(half) << "[tra";
  train_five({"checkpoint.resume=auto"});
  EXPECT_FALSE(fs::exists(half));
}

TEST_F(RunFolder, AFinishedRunStaysAsItIs) {
  train_five();
  const auto before = contents_of(run_dir_);
  const auto ran =
      train({"checkpoint.resume=auto", "train.steps=5", "optimizer.learning_rate=1e-4"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("nothing is left to train"));
  EXPECT_EQ(ran.report.at("losses").size(), 5u);
  EXPECT_EQ(contents_of(run_dir_), before);
}

}  // namespace
}  // namespace strait
