#include "strait/checkpoint/checkpoint.h"

#include <gmock/gmock.h>

#include <fstream>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "tests/checkpoint/example_run.h"
#include "tests/unprivileged.h"

namespace strait::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Checkpoint, HoldsItsFiles) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path() + "/new/run", 100, 2);
  EXPECT_EQ(path, run.path() + "/new/run/checkpoints/step-00000100");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path))
    names.push_back(entry.path().filename().string());
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("rank-00000.safetensors", "rank-00001.safetensors",
                                              "tokenizer.json", "run.toml", "manifest.json"));
  EXPECT_TRUE(is_complete(path));
  expect_content(path, 100);
}

TEST(Checkpoint, LatestIsTheHighestCompleteStep) {
  const TemporaryFolder run;
  EXPECT_EQ(latest_complete(run.path()), std::nullopt);
  for (const int64_t step : {5, 100, 20}) save_example(run.path(), step, 1);
  const std::string folder = run.path() + "/checkpoints/";
  EXPECT_THAT(
      complete_checkpoints(run.path()),
      ElementsAre(folder + "step-00000005", folder + "step-00000020", folder + "step-00000100"));
  EXPECT_EQ(latest_complete(run.path()), folder + "step-00000100");
  fs::resize_file(folder + "step-00000100/rank-00000.safetensors", 50);
  EXPECT_EQ(latest_complete(run.path()), folder + "step-00000020");
  fs::remove(folder + "step-00000020/manifest.json");
  fs::create_directory(folder + "step-999");       // not a checkpoint's name
  fs::create_directory(folder + "step-00000999");  // empty
  EXPECT_EQ(latest_complete(run.path()), folder + "step-00000005");
}

TEST(Checkpoint, ADamagedNewestOneIsNotPassedOver) {
  const TemporaryFolder run;
  EXPECT_EQ(newest_checkpoint(run.path()), std::nullopt);
  const std::string old = save_example(run.path(), 1, 2), newest = save_example(run.path(), 2, 2);
  EXPECT_EQ(newest_checkpoint(run.path()), newest);
  for (const char* name : {"rank-00001.safetensors", "run.toml", "manifest.json"}) {
    fs::rename(newest + "/" + name, run.path() + "/away");
    for (const auto& ask : std::vector<std::function<void()>>{
             [&] { newest_checkpoint(run.path()); }, [&] { resolve_checkpoint(run.path()); }})
      EXPECT_THAT(message_of<UserError>(ask),
                  AllOf(HasSubstr(newest + "/" + name), HasSubstr("newest whole one is " + old)));
    fs::rename(run.path() + "/away", newest + "/" + name);
  }
  fs::remove_all(old);
  fs::remove(newest + "/manifest.json");
  EXPECT_THAT(message_of<UserError>([&] { newest_checkpoint(run.path()); }),
              HasSubstr("no whole one"));
}

// A run that seems to have no checkpoint is begun again.
TEST(Checkpoint, AFolderThatCannotBeListedIsNoEmptyOne) {
  const TemporaryFolder run;
  save_example(run.path(), 1, 1);
  const std::string folder = run.path() + "/checkpoints";
  const std::vector<std::function<void()>> all = {
      [&] { newest_checkpoint(run.path()); },    [&] { latest_complete(run.path()); },
      [&] { complete_checkpoints(run.path()); }, [&] { set_aside_behind(run.path(), 0); },
      [&] { clean_partial(run.path()); },        [&] { resolve_checkpoint(run.path()); }};
  for (const mode_t mode : {0000, 0300}) {
    const test::Forbidden forbidden(folder, mode);
    for (const auto& ask : all)
      EXPECT_THAT(message_of<InputOutputError>(ask),
                  AllOf(HasSubstr(folder), HasSubstr("Permission denied")));
  }
  fs::rename(folder, run.path() + "/away");
  fs::create_symlink("checkpoints", folder);
  for (const auto& ask : all) EXPECT_THAT(message_of<InputOutputError>(ask), HasSubstr(folder));
  fs::remove(folder);
  EXPECT_EQ(newest_checkpoint(run.path()), std::nullopt);
}

TEST(Checkpoint, AFileThatCannotBeOpenedIsNotDamaged) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path(), 1, 1);
  for (const char* name : {"", "/manifest.json"}) {
    const test::Forbidden forbidden(path + name);
    EXPECT_THAT(message_of<InputOutputError>([&] { newest_checkpoint(run.path()); }),
                AllOf(HasSubstr(path), HasSubstr("Permission denied"),
                      ::testing::Not(HasSubstr("damaged"))));
  }
  const test::Forbidden forbidden(path + "/rank-00000.safetensors");
  EXPECT_THAT(message_of<InputOutputError>([&] { expect_content(path, 1); }),
              HasSubstr("rank-00000.safetensors"));
}

TEST(Checkpoint, NothingIsVisibleBeforePublish) {
  const TemporaryFolder run;
  save_example(run.path(), 1, 1);
  const std::string folder = begin_save(run.path(), 2);
  const ExampleShards shards(2, 0, 1);
  write_rank_file(folder, 0, shards.views);
  EXPECT_THAT(checkpoint_entries(run.path()),
              ElementsAre(".step-00000002.partial", "step-00000001"));
  EXPECT_EQ(latest_complete(run.path()), run.path() + "/checkpoints/step-00000001");
  // A new beginning drops what was there; so does cleaning.
  EXPECT_EQ(begin_save(run.path(), 2), folder);
  EXPECT_TRUE(fs::is_empty(folder));
  clean_partial(run.path());
  EXPECT_THAT(checkpoint_entries(run.path()), ElementsAre("step-00000001"));
  clean_partial(run.path() + "/none");
}

TEST(Checkpoint, TheSameStepIsReplaced) {
  const TemporaryFolder run;
  save_example(run.path(), 7, 4, 1);
  const std::string path = save_example(run.path(), 7, 2, 2);
  expect_content(path, 2);
  EXPECT_FALSE(fs::exists(path + "/rank-00003.safetensors"));
  EXPECT_THAT(checkpoint_entries(run.path()), ElementsAre("step-00000007"));
}

// Where names cannot be exchanged, a crash may leave the old checkpoint under its hidden name.
TEST(Checkpoint, CutReplacementIsSettled) {
  const TemporaryFolder run;
  const std::string path = save_example(run.path(), 7, 1, 1);
  const std::string old = run.path() + "/checkpoints/.step-00000007.replaced";
  for (int round = 0; round < 2; ++round) {
    fs::rename(path, old);
    if (round == 0) clean_partial(run.path());
    if (round == 1) abandon(begin_save(run.path(), 7));
    expect_content(path, 1);
    EXPECT_THAT(checkpoint_entries(run.path()), ElementsAre("step-00000007"));
  }
  fs::rename(path, old);
  fs::create_directory(path);
  clean_partial(run.path());
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(path));
}

TEST(Checkpoint, PublishRefusesWhatCouldNotBeLoaded) {
  const TemporaryFolder run;
  const std::string folder = begin_save(run.path(), 3);
  const ExampleShards first(3, 0, 2), second(3, 1, 2);
  Manifest manifest = example_manifest(3, 2, 3);
  const RankRecord record = write_rank_file(folder, 0, first.views);
  manifest.add(record);
  EXPECT_THAT(message_of<InternalError>([&] { publish(folder, manifest); }),
              HasSubstr("no rank's file holds"));
  manifest.add(write_rank_file(folder, 1, second.views));
  Manifest other_step = manifest;
  other_step.step = 4;
  EXPECT_THROW(publish(folder, other_step), InternalError);
  Manifest lost_file = manifest;
  lost_file.files.push_back({"run.toml", 3, ""});
  EXPECT_THAT(message_of<InternalError>([&] { publish(folder, lost_file); }),
              HasSubstr("run.toml"));
  Manifest doubled = manifest;
  doubled.shards.push_back(record.shards.front());
  EXPECT_THAT(message_of<InternalError>([&] { publish(folder, doubled); }), HasSubstr("overlap"));
  EXPECT_EQ(latest_complete(run.path()), std::nullopt);
  expect_content(publish(folder, manifest), 3);
}

TEST(Checkpoint, PathsOfUsers) {
  const TemporaryFolder run;
  save_example(run.path(), 1, 1);
  const std::string path = save_example(run.path(), 20, 1);
  for (const std::string& given :
       {run.path(), run.path() + "/", run.path() + "//.", path, path + "/"})
    EXPECT_EQ(resolve_checkpoint(given), path) << given;
  const std::string parent = run.path() + "/checkpoints/";
  EXPECT_THAT(message_of<UserError>([&] { resolve_checkpoint(parent + "step-00000021"); }),
              AllOf(HasSubstr("step-00000021 is not a folder"), HasSubstr("step-00000020")));
  EXPECT_THAT(message_of<UserError>([&] { resolve_checkpoint(run.path() + "/none"); }),
              HasSubstr("is not a folder"));
  EXPECT_THAT(message_of<UserError>([&] { resolve_checkpoint(parent + "step-00000001/run.toml"); }),
              HasSubstr("is not a folder"));
  fs::create_directories(run.path() + "/empty/checkpoints");
  EXPECT_THAT(message_of<UserError>([&] { resolve_checkpoint(run.path() + "/empty"); }),
              HasSubstr("holds no complete checkpoint"));
  EXPECT_THAT(message_of<UserError>([&] { resolve_checkpoint(run.path() + "/empty/checkpoints"); }),
              HasSubstr("neither a checkpoint nor a run folder"));
}

// The super-user may write into any folder, so the path runs through a regular file.
TEST(Checkpoint, FolderThatCannotBeMade) {
  const TemporaryFolder run;
  std::ofstream(run.path() + "/file") << "x";
  EXPECT_THAT(message_of<InputOutputError>([&] { begin_save(run.path() + "/file", 1); }),
              HasSubstr(run.path() + "/file"));
  EXPECT_THROW(write_rank_file(run.path() + "/file", 0, {}), InputOutputError);
  EXPECT_THROW(write_text(run.path() + "/file", "run.toml", ""), InputOutputError);
  EXPECT_EQ(latest_complete(run.path() + "/file"), std::nullopt);
  EXPECT_THROW(resolve_checkpoint(run.path() + "/file"), UserError);
}

}  // namespace
}  // namespace strait::checkpoint
