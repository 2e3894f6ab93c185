#include "strait/checkpoint/session.h"

#include <gmock/gmock.h>

#include <atomic>
#include <fstream>
#include <latch>
#include <set>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/checkpoint/meeting.h"
#include "strait/checkpoint/snapshot.h"
#include "tests/checkpoint/example_run.h"

namespace strait::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::optional<SaveDescription> description_of(int64_t rank, int64_t step, int64_t ranks) {
  if (rank != 0) return std::nullopt;
  return example_description(step, ranks, step);
}

std::string save_step(SaveSession& session, int64_t step, int64_t rank, int64_t ranks) {
  const ExampleShards shards(step, rank, ranks);
  return session.save(step, shards.views, description_of(rank, step, ranks));
}

std::string partial_of(const std::string& run_dir, int64_t step, int64_t number) {
  return run_dir + "/checkpoints/." + checkpoint_name(step) + ".example-" + std::to_string(number) +
         ".partial";
}

TEST(Session, RanksSaveTogether) {
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    const TemporaryFolder run;
    on_ranks(ranks, [&](int64_t rank) {
      SaveSession session(example_session(run.path(), rank, ranks));
      for (const int64_t step : {1, 2, 3, 3})
        EXPECT_EQ(save_step(session, step, rank, ranks),
                  run.path() + "/checkpoints/" + checkpoint_name(step));
    });
    for (const int64_t step : {1, 2, 3})
      expect_content(run.path() + "/checkpoints/" + checkpoint_name(step), step);
    const std::string newest = *latest_complete(run.path());
    const Manifest manifest = read_manifest(newest);
    EXPECT_EQ(manifest.files.front().name, "rank-00000.safetensors");
    // Nothing of the meeting is left: the listed files and the manifest.
    const fs::directory_iterator entries(newest);
    EXPECT_EQ(std::distance(begin(entries), end(entries)), std::ssize(manifest.files) + 1);
    EXPECT_THAT(checkpoint_entries(run.path()),
                ElementsAre("step-00000001", "step-00000002", "step-00000003"));
  }
}

TEST(Session, MissingRanksAreNamedAfterTheDeadline) {
  for (const int64_t present : {2, 1}) {
    const TemporaryFolder run;
    std::atomic<int64_t> named = 0;
    on_ranks(present, [&](int64_t rank) {
      // The deadline shall not meet ranks that are merely slow.
      SaveSession session(example_session(run.path(), rank, 3, 1.0));
      try {
        save_step(session, 1, rank, 3);
      } catch (const Timeout& error) {
        EXPECT_THAT(error.what(), HasSubstr(present == 2 ? "rank 2 had not written its file"
                                                         : "ranks 1, 2 had not written"));
        EXPECT_EQ(error.place().rank, present);
        EXPECT_EQ(error.place().step, 1);
        EXPECT_EQ(error.place().operation, "save");
        ++named;
      }
    });
    EXPECT_EQ(named, present);
    EXPECT_EQ(latest_complete(run.path()), std::nullopt);
    // Its files are gone; the notes wait for a rank that comes late.
    for (int64_t rank = 0; rank < present; ++rank)
      EXPECT_FALSE(fs::exists(partial_of(run.path(), 1, 1) + "/rank-0000" + std::to_string(rank) +
                              ".safetensors"));
    SaveSession late(example_session(run.path(), 2, 3));
    EXPECT_THAT(message_of<Timeout>([&] { save_step(late, 1, 2, 3); }),
                HasSubstr("had not written"));
    clean_partial(run.path());
    EXPECT_TRUE(checkpoint_entries(run.path()).empty());
  }
}

TEST(Session, FailureReachesEveryRankAndTheNextSaveWorks) {
  for (const int64_t broken : {0, 2}) {
    const TemporaryFolder run;
    const std::string in_the_way =
        partial_of(run.path(), 1, 1) + "/rank-0000" + std::to_string(broken) + ".safetensors";
    fs::create_directories(in_the_way + "/full");
    std::atomic<int> failed = 0;
    on_ranks(4, [&](int64_t rank) {
      SaveSession session(example_session(run.path(), rank, 4));
      try {
        save_step(session, 1, rank, 4);
      } catch (const InputOutputError& error) {
        EXPECT_THAT(error.what(), HasSubstr(in_the_way));
        EXPECT_EQ(error.place().rank.value_or(broken), broken);
        ++failed;
      }
      // At once again, though other ranks may not have left the failed save.
      save_step(session, 1, rank, 4);
    });
    EXPECT_EQ(failed, 4);
    EXPECT_THAT(checkpoint_entries(run.path()), ElementsAre("step-00000001"));
    expect_content(run.path(), 1);
  }
}

TEST(Session, AFailureThatLeavesNoRoomForItsReasonStillReachesEveryRank) {
  const TemporaryFolder run;
  const Meeting here(join_save(run.path(), 1, "tag"), 0, 2);
  Meeting there(here.folder(), 1, 2);
  fs::create_directories(here.folder() + "/rank-00001.failed.json.writing/in the way");
  there.fail(Failure(InputOutputError("no room"), 1, 1));
  EXPECT_THAT(*here.look(), ElementsAre(Presence::kMissing, Presence::kFailed));
  const Failure failure = here.failure(1);
  EXPECT_EQ(failure.code, ExitCode::kInputOutput);
  EXPECT_EQ(failure.place.rank, 1);
  EXPECT_THROW(failure.raise(), InputOutputError);
}

TEST(Session, FolderThatCannotBeMadeFailsEveryRank) {
  const TemporaryFolder run;
  std::ofstream(run.path() + "/file") << "x";
  std::atomic<int> failed = 0;
  on_ranks(3, [&](int64_t rank) {
    SaveSession session(example_session(run.path() + "/file", rank, 3));
    for (int round = 0; round < 2; ++round)
      if (!message_of<InputOutputError>([&] { save_step(session, 1, rank, 3); }).empty()) ++failed;
  });
  EXPECT_EQ(failed, 6);
}

TEST(Session, WhatAnotherRunLeftIsNotTaken) {
  const TemporaryFolder run;
  // Rank 1 of a run that crashed had written its part of the same step.
  SessionOptions crashed = example_session(run.path(), 1, 2, 0.05);
  crashed.token = "crashed";
  SaveSession before(crashed);
  EXPECT_THROW(save_step(before, 1, 1, 2), Timeout);
  SaveSession session(example_session(run.path(), 0, 2, 0.05));
  EXPECT_THAT(message_of<Timeout>([&] { save_step(session, 1, 0, 2); }), HasSubstr("rank 1"));
}

TEST(Session, TokensAndDescriptionsAreChecked) {
  const TemporaryFolder run;
  for (const char* token : {"", "a/b", "a.b", "../x"}) {
    SessionOptions options = example_session(run.path(), 0, 1);
    options.token = token;
    EXPECT_THROW(SaveSession{options}, InternalError) << token;
  }
  EXPECT_THROW(SaveSession(example_session(run.path(), 3, 3)), InternalError);
  std::set<std::string> tokens;
  for (int i = 0; i < 100; ++i) tokens.insert(make_session_token());
  EXPECT_EQ(tokens.size(), 100u);
  SaveSession session(example_session(run.path(), 0, 1));
  const ExampleShards shards(1, 0, 1);
  EXPECT_THAT(message_of<InternalError>([&] { session.save(1, shards.views); }),
              HasSubstr("description"));
}

TEST(Retention, KeepsTheNewestOnceANewerOneIsThere) {
  const TemporaryFolder run;
  SessionOptions options = example_session(run.path(), 0, 1);
  for (const int64_t step : {1, 2, 3}) save_example(run.path(), step, 1);  // before this process
  options.retention.keep = 2;
  SaveSession session(options);
  EXPECT_EQ(checkpoint_entries(run.path()).size(), 3u);
  save_step(session, 4, 0, 1);
  EXPECT_THAT(checkpoint_entries(run.path()), ElementsAre("step-00000003", "step-00000004"));
  save_step(session, 5, 0, 1);
  save_step(session, 5, 0, 1);
  EXPECT_THAT(checkpoint_entries(run.path()), ElementsAre("step-00000004", "step-00000005"));
  expect_content(run.path() + "/checkpoints/step-00000004", 4);
}

TEST(Retention, LeavesWhatIsNewerAndWhatIsNotComplete) {
  const TemporaryFolder run;
  for (const int64_t step : {1, 2, 3, 9}) save_example(run.path(), step, 1);
  fs::remove(run.path() + "/checkpoints/step-00000002/manifest.json");
  SessionOptions options = example_session(run.path(), 0, 1);
  options.retention.keep = 1;
  SaveSession session(options);
  save_step(session, 5, 0, 1);  // a run that went back behind step 9
  EXPECT_THAT(checkpoint_entries(run.path()),
              ElementsAre("step-00000002", "step-00000005", "step-00000009"));
}

TEST(Retention, AFailedSaveRemovesNothing) {
  const TemporaryFolder run;
  save_example(run.path(), 1, 1);
  fs::create_directories(partial_of(run.path(), 2, 1) + "/rank-00000.safetensors/full");
  SessionOptions options = example_session(run.path(), 0, 1);
  options.retention.keep = 1;
  SaveSession session(options);
  EXPECT_THROW(save_step(session, 2, 0, 1), InputOutputError);
  expect_content(run.path() + "/checkpoints/step-00000001", 1);
}

TEST(Snapshot, TakesTheValuesOfTheMoment) {
  for (const bool given_memory : {false, true}) {
    const TemporaryFolder run;
    on_ranks(2, [&](int64_t rank) {
      SaveSession session(example_session(run.path(), rank, 2));
      std::vector<std::byte> buffer;
      SnapshotWriter writer(session);
      for (int64_t step = 1; step <= 4; ++step) {
        ExampleShards shards(step, rank, 2);
        if (given_memory && step == 1) {
          buffer.resize(static_cast<size_t>(snapshot_bytes(shards.views)));
          writer.use_buffer(buffer);
        }
        writer.start(step, shards.views, description_of(rank, step, 2));
        for (auto& memory : shards.memory) std::fill(memory.begin(), memory.end(), std::byte{0xee});
      }
      EXPECT_EQ(writer.finish(), run.path() + "/checkpoints/step-00000004");
      EXPECT_FALSE(writer.busy());
      EXPECT_EQ(writer.finish(), std::nullopt);
    });
    for (int64_t step = 1; step <= 4; ++step)
      expect_content(run.path() + "/checkpoints/" + checkpoint_name(step), step);
  }
}

TEST(Snapshot, TheCallerGoesOnWhileOthersAreMissing) {
  const TemporaryFolder run;
  SaveSession first_session(example_session(run.path(), 0, 2));
  SaveSession second_session(example_session(run.path(), 1, 2));
  const ExampleShards first(1, 0, 2), second(1, 1, 2);
  SnapshotWriter a(first_session), b(second_session);
  a.start(1, first.views, description_of(0, 1, 2));  // would block for ever if it waited for rank 1
  EXPECT_TRUE(a.busy());
  b.start(1, second.views);
  a.finish();
  b.finish();
  expect_content(run.path(), 1);
}

TEST(Snapshot, FailureSurfacesOnTheNextCall) {
  const TemporaryFolder run;
  std::ofstream(run.path() + "/file") << "x";
  SaveSession session(example_session(run.path() + "/file", 0, 1));
  SnapshotWriter writer(session);
  const ExampleShards shards(1, 0, 1);
  writer.start(1, shards.views, description_of(0, 1, 1));
  EXPECT_THROW(writer.start(2, shards.views, description_of(0, 2, 1)), InputOutputError);
  EXPECT_EQ(writer.finish(), std::nullopt) << "the second save was not started";
  writer.start(3, shards.views, description_of(0, 3, 1));
  EXPECT_THROW(writer.finish(), InputOutputError);
}

TEST(Snapshot, MissingRankIsNamedAfterTheDeadline) {
  const TemporaryFolder run;
  SaveSession session(example_session(run.path(), 0, 2, 0.05));
  SnapshotWriter writer(session);
  const ExampleShards shards(1, 0, 2);
  writer.start(1, shards.views, description_of(0, 1, 2));
  EXPECT_THAT(message_of<Timeout>([&] { writer.finish(); }), HasSubstr("rank 1 had not written"));
}

TEST(Snapshot, MayEndWithoutFinish) {
  const TemporaryFolder run;
  const double begin = now_seconds();
  for (const int64_t rank : {0, 1}) {
    SaveSession session(example_session(run.path(), rank, 3, 3600.0));
    const ExampleShards shards(1, rank, 3);
    SnapshotWriter writer(session);
    writer.start(1, shards.views, description_of(rank, 1, 3));
  }  // must not wait for rank 2
  EXPECT_LT(now_seconds() - begin, 60);
  EXPECT_EQ(latest_complete(run.path()), std::nullopt);
}

// A run that ends by an error everywhere still completes the save that was in flight.
TEST(Snapshot, EndingOnAllRanksCompletesTheSave) {
  const TemporaryFolder run;
  std::latch started(2);
  on_ranks(2, [&](int64_t rank) {
    SaveSession session(example_session(run.path(), rank, 2));
    const ExampleShards shards(1, rank, 2);
    SnapshotWriter writer(session);
    writer.start(1, shards.views, description_of(rank, 1, 2));
    started.arrive_and_wait();
  });
  expect_content(run.path(), 1);
}

}  // namespace
}  // namespace strait::checkpoint
