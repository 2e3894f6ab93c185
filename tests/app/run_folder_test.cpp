// A run folder has one run at a time, goes on only as what it was, and stays as it is when
// finished.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "strait/base/process_identity.h"
#include "strait/report/metrics.h"
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
    if (std::error_code none; entry.is_regular_file(none))
      contents[entry.path()] = read_file(entry.path());
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

// As a disk that is away: the run is neither begun again nor overwritten.
TEST_F(RunFolder, CheckpointsThatCannotBeListedEndTheRunBeforeItWrites) {
  train_five();
  const std::string checkpoints = run_dir_ + "/checkpoints";
  for (const char* target : {"checkpoints", "none"}) {  // a link to itself, and to nothing
    fs::rename(checkpoints, folder_.path() + "/away");
    fs::create_symlink(target, checkpoints);
    const auto before = contents_of(run_dir_);
    const test::Ran ran = train({"train.steps=7", "checkpoint.resume=auto"});
    EXPECT_EQ(ran.exit_code, 6) << ran.err;
    EXPECT_THAT(ran.err, HasSubstr(checkpoints));
    EXPECT_EQ(ran.report.at("error").at("file").as_string(), checkpoints);
    EXPECT_EQ(contents_of(run_dir_), before);
    fs::remove(checkpoints);
    fs::rename(folder_.path() + "/away", checkpoints);
  }
  EXPECT_EQ(train({"train.steps=7", "checkpoint.resume=auto"})
                .report.at("resumed_from_step")
                .as_integer(),
            5);
}

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
      {"optimizer.kind=sgd", "optimizer.kind = \"sgd\" cannot take effect"},
      {"model.shape.context=16", "model.shape.context = 16 cannot take effect"},
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

TEST_F(RunFolder, ASwitchBetweenTokensAndSequencesIsRefused) {
  const std::string documents = "data.document_separator=.\n";
  std::string text = read_file(file_);
  const std::string size = "global_batch_size = 8\n";  // refused beside tokens
  text.erase(text.find(size), size.size());
  std::ofstream(file_) << text;
  const std::pair<const char*, const char*> switches[] = {
      {"train.global_batch_size=8", "train.global_batch_tokens=400"},
      {"train.global_batch_tokens=400", "train.global_batch_size=8"}};
  for (const auto& [before, after] : switches) {
    fs::remove_all(run_dir_);
    train_five({documents, before});
    const auto contents = contents_of(run_dir_);
    const auto ran = train({documents, after, "checkpoint.resume=auto", "train.steps=7"});
    EXPECT_EQ(ran.exit_code, 2) << after;
    EXPECT_EQ(ran.report.at("error").at("key").as_string(), "train.global_batch_tokens");
    EXPECT_THAT(ran.err, HasSubstr("the nearest valid value is"));
    EXPECT_EQ(contents_of(run_dir_), contents);
  }
}

/// Steps of metrics.jsonl.
std::vector<int64_t> steps_in(const std::string& run_dir) {
  std::vector<int64_t> steps;
  for (const report::StepMetrics& metrics : report::read_metrics(run_dir + "/metrics.jsonl"))
    steps.push_back(metrics.step);
  return steps;
}

TEST_F(RunFolder, GoingBackSetsLaterCheckpointsAside) {
  const std::string four = run_dir_ + "/checkpoints/step-00000004",
                    eight = run_dir_ + "/checkpoints/step-00000008",
                    aside = run_dir_ + "/checkpoints/abandoned-step-00000008";
  ASSERT_EQ(train({"train.steps=8", "checkpoint.every_steps=4"}).exit_code, 0);
  const auto before = contents_of(eight);

  const auto refused = train({"checkpoint.resume=" + four, "train.steps=6", "seed=7"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(train({"checkpoint.resume=" + four, "train.steps=4"}).exit_code, 0);
  EXPECT_EQ(contents_of(eight), before) << "nothing was trained";

  const auto back = train({"checkpoint.resume=" + four, "train.steps=6"});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  EXPECT_THAT(back.out, HasSubstr("set aside   " + eight + ", now " + aside));
  EXPECT_FALSE(fs::exists(eight));
  EXPECT_EQ(contents_of(aside).size(), before.size());
  const auto on = train({"checkpoint.resume=auto", "train.steps=8"});
  ASSERT_EQ(on.exit_code, 0) << on.err;
  EXPECT_THAT(on.out, HasSubstr("resumed     from " + run_dir_ + "/checkpoints/step-00000006"));
  EXPECT_EQ(steps_in(run_dir_), (std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));

  // Again, where the name is taken; and what was set aside can be gone on from.
  ASSERT_EQ(train({"checkpoint.resume=" + four, "train.steps=6"}).exit_code, 0);
  EXPECT_TRUE(fs::exists(aside + ".2"));
  EXPECT_EQ(train({"checkpoint.resume=" + aside, "train.steps=9"}).exit_code, 0);
}

TEST_F(RunFolder, TheBestIsNotLookedForBehindTheStepGoneBackTo) {
  const std::string four = run_dir_ + "/checkpoints/step-00000004";
  const std::vector<std::string> best = {"evaluation.every_steps=2", "checkpoint.keep_best=true",
                                         "checkpoint.every_steps=4"};
  const auto with = [&](std::vector<std::string> sets) {
    sets.insert(sets.end(), best.begin(), best.end());
    return train(sets);
  };
  ASSERT_EQ(with({"train.steps=12"}).exit_code, 0);
  // Hardly moves: worse than the abandoned steps, but the best of those that count.
  const auto back =
      with({"checkpoint.resume=" + four, "train.steps=6", "optimizer.learning_rate=1e-9"});
  ASSERT_EQ(back.exit_code, 0) << back.err;
  const std::string path = back.report.at("best_checkpoint").as_string();
  EXPECT_THAT(path, ::testing::AnyOf(HasSubstr("step-00000004"), HasSubstr("step-00000006")));
}

TEST_F(RunFolder, ACheckpointOfAnotherRunNeedsAFolderOfItsOwn) {
  train_five();
  const std::string other = folder_.path() + "/other";
  ASSERT_EQ(train({"output.run_dir=" + other, "train.steps=3"}).exit_code, 0);
  const auto before = contents_of(run_dir_);
  const auto mixed = train({"checkpoint.resume=" + other, "train.steps=6"});
  EXPECT_EQ(mixed.exit_code, 2);
  EXPECT_THAT(mixed.err, HasSubstr("already holds another run than that of " + other));
  EXPECT_EQ(mixed.report.at("error").at("key").as_string(), "output.run_dir");
  EXPECT_EQ(contents_of(run_dir_), before);
  // Its own folder by another name, and one that holds no run.
  EXPECT_EQ(train({"checkpoint.resume=" + folder_.path() + "/./run/", "train.steps=6"}).exit_code,
            0);
  fs::remove_all(run_dir_);
  EXPECT_EQ(train({"checkpoint.resume=" + other, "train.steps=6"}).exit_code, 0);
}

TEST_F(RunFolder, AFinishedCheckpointWithoutMetricsStarts) {
  train_five();
  const std::string converted = folder_.path() + "/converted";
  ASSERT_EQ(run({"convert", run_dir_, converted, "--to", "checkpoint"}).exit_code, 0);
  const auto finished = run({"train", converted + "/run.toml"});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("nothing is left to train"));
}

}  // namespace
}  // namespace strait
