#include "strait/checkpoint/session.h"

#include <gmock/gmock.h>

#include <atomic>
#include <barrier>
#include <fstream>

#include "strait/base/errors.h"
#include "strait/checkpoint/snapshot.h"
#include "tests/checkpoint/example_run.h"

namespace strait::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::optional<SaveDescription> description_of(int64_t rank, int64_t step, int64_t ranks) {
  if (rank != 0) return std::nullopt;
  return example_description(step, ranks, step);
}

TEST(Session, RanksSaveTogether) {
  for (const int64_t ranks : {1, 2, 3, 4, 8}) {
    const TemporaryFolder run;
    SaveSession session(run.path(), ranks, 30.0);
    on_ranks(ranks, [&](int64_t rank) {
      for (const int64_t step : {1, 2, 3, 3}) {
        const ExampleShards shards(step, rank, ranks);
        EXPECT_EQ(session.save(step, rank, shards.views, description_of(rank, step, ranks)),
                  run.path() + "/checkpoints/" + checkpoint_name(step));
      }
    });
    for (const int64_t step : {1, 2, 3})
      expect_content(run.path() + "/checkpoints/" + checkpoint_name(step), step);
    EXPECT_EQ(read_manifest(*latest_complete(run.path())).files.front().name,
              "rank-00000.safetensors");
  }
}

TEST(Session, MissingRankIsNamedAfterTheDeadline) {
  const TemporaryFolder run;
  SaveSession session(run.path(), 3, 0.05);
  std::barrier written(2);  // the deadline shall not meet ranks that are merely slow
  std::atomic<int> named = 0;
  on_ranks(2, [&](int64_t rank) {
    const ExampleShards shards(1, rank, 3);
    session.add(1, rank, write_rank_file(session.open(1, rank), rank, shards.views),
                description_of(rank, 1, 3));
    written.arrive_and_wait();
    try {
      session.wait(1, rank);
    } catch (const Timeout& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 2 had not written"));
      EXPECT_EQ(error.place().rank, 2);
      EXPECT_EQ(error.place().step, 1);
      ++named;
    }
  });
  EXPECT_EQ(named, 2);
  EXPECT_EQ(latest_complete(run.path()), std::nullopt);
}

TEST(Session, FailureReachesEveryRankAndTheNextSaveWorks) {
  const TemporaryFolder run;
  SaveSession session(run.path(), 4, 30.0);
  std::atomic<int> failed = 0;
  on_ranks(4, [&](int64_t rank) {
    const ExampleShards shards(1, rank, 4);
    if (rank == 2) {
      session.open(1, rank);
      session.fail(1, rank, InputOutputError("no space for rank 2"));
    }
    try {
      if (rank == 2) {
        session.wait(1, rank);
      } else {
        session.save(1, rank, shards.views, description_of(rank, 1, 4));
      }
    } catch (const InputOutputError& error) {
      EXPECT_STREQ(error.what(), "no space for rank 2");
      ++failed;
    }
    // At once again, though other ranks may not have left the failed save.
    session.save(1, rank, shards.views, description_of(rank, 1, 4));
  });
  EXPECT_EQ(failed, 4);
  EXPECT_THAT(checkpoint_entries(run.path()), ElementsAre("step-00000001"));
  expect_content(run.path(), 1);
}

TEST(Session, FolderThatCannotBeMadeFailsEveryRank) {
  const TemporaryFolder run;
  std::ofstream(run.path() + "/file") << "x";
  SaveSession session(run.path() + "/file", 3, 30.0);
  std::atomic<int> failed = 0;
  on_ranks(3, [&](int64_t rank) {
    const ExampleShards shards(1, rank, 3);
    for (int round = 0; round < 2; ++round) {
      try {
        session.save(1, rank, shards.views, description_of(rank, 1, 3));
      } catch (const InputOutputError& error) {
        ++failed;
      }
    }
  });
  EXPECT_EQ(failed, 6);
}

TEST(Session, DescriptionIsNeeded) {
  const TemporaryFolder run;
  SaveSession session(run.path(), 1, 30.0);
  const ExampleShards shards(1, 0, 1);
  EXPECT_THAT(message_of<InternalError>([&] { session.save(1, 0, shards.views); }),
              HasSubstr("description"));
  EXPECT_THROW(session.wait(1, 0), InternalError) << "the save is over";
}

TEST(Snapshot, TakesTheValuesOfTheMoment) {
  for (const bool given_memory : {false, true}) {
    const TemporaryFolder run;
    SaveSession session(run.path(), 2, 30.0);
    on_ranks(2, [&](int64_t rank) {
      std::vector<std::byte> buffer;
      SnapshotWriter writer(session, rank);
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
  SaveSession session(run.path(), 2, 30.0);
  const ExampleShards first(1, 0, 2), second(1, 1, 2);
  SnapshotWriter a(session, 0), b(session, 1);
  a.start(1, first.views, description_of(0, 1, 2));  // would block for ever if it waited for rank 1
  b.start(1, second.views);
  a.finish();
  b.finish();
  expect_content(run.path(), 1);
}

TEST(Snapshot, FailureSurfacesOnTheNextCall) {
  const TemporaryFolder run;
  std::ofstream(run.path() + "/file") << "x";
  SaveSession session(run.path() + "/file", 1, 30.0);
  SnapshotWriter writer(session, 0);
  const ExampleShards shards(1, 0, 1);
  writer.start(1, shards.views, description_of(0, 1, 1));
  EXPECT_THROW(writer.start(2, shards.views, description_of(0, 2, 1)), InputOutputError);
  EXPECT_EQ(writer.finish(), std::nullopt) << "the second save was not started";
  writer.start(3, shards.views, description_of(0, 3, 1));
  EXPECT_THROW(writer.finish(), InputOutputError);
}

TEST(Snapshot, MissingRankIsNamedAfterTheDeadline) {
  const TemporaryFolder run;
  SaveSession session(run.path(), 2, 0.05);
  SnapshotWriter writer(session, 0);
  const ExampleShards shards(1, 0, 2);
  writer.start(1, shards.views, description_of(0, 1, 2));
  while (writer.busy()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_THAT(message_of<Timeout>([&] { writer.finish(); }), HasSubstr("rank 1 had not written"));
}

TEST(Snapshot, MayEndWithoutFinish) {
  const TemporaryFolder run;
  SaveSession session(run.path(), 2, 3600.0);
  const ExampleShards shards(1, 0, 2);
  {
    SnapshotWriter writer(session, 0);
    writer.start(1, shards.views, description_of(0, 1, 2));
  }  // must not wait for rank 1
  EXPECT_TRUE(std::filesystem::exists(
      run.path() + "/checkpoints/.step-00000001.partial/rank-00000.safetensors"));
}

}  // namespace
}  // namespace strait::checkpoint
