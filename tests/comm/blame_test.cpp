// Ranks whose deadlines pass at the same time in different communicators name the same rank: the
// one that waits for nobody.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "strait/base/clock.h"
#include "tests/comm/thread_ranks.h"
#include "tests/pace.h"

namespace strait::comm {
namespace {

using ::testing::HasSubstr;

Call barrier(const std::string& label, double deadline) {
  Call call;
  call.label = label;
  call.step = 12;
  call.deadline_seconds = deadline;
  return call;
}

/// What each rank of a world threw.
struct Told {
  std::mutex mutex;
  std::vector<std::pair<int64_t, ErrorPlace>> places;
  std::vector<std::string> messages;
  void add(int64_t rank, const Error& error) {
    const std::lock_guard<std::mutex> lock(mutex);
    places.push_back({rank, error.place()});
    messages.push_back(error.what());
  }
  /// So long a rank is inside an operation: until so many others have told.
  void wait_for(size_t count) {
    const double limit = now_seconds() + 60;
    while (now_seconds() < limit) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        if (places.size() >= count) return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "nobody tells";
  }
};

/// Rank r waits for r + 1 on a communicator of the two; the last one is inside an operation.
class Chain : public ::testing::TestWithParam<int64_t> {};

TEST_P(Chain, EveryRankNamesTheOneAtItsEnd) {
  const int64_t size = GetParam();
  const auto worlds = make_thread_worlds(size, test_cluster(size));
  Told told;
  const double deadline = test::deadline_here(0.2);
  run_ranks(*worlds, [&](World& world) {
    const int64_t rank = world.rank();
    if (rank == size - 1) {
      world.waits()->busy("y = forward block 3(x)", 12, 40);
      return told.wait_for(static_cast<size_t>(size - 1));
    }
    try {
      world.communicator({rank, rank + 1}, 0)
          .start(barrier("b" + std::to_string(rank), deadline))
          .wait();
    } catch (const Error& error) {
      world.abort(error.what(), error.place());
      told.add(rank, error);
    }
  });
  ASSERT_EQ(told.places.size(), static_cast<size_t>(size - 1));
  for (const auto& [rank, place] : told.places) {
    EXPECT_EQ(place.rank, size - 1) << rank;
    EXPECT_EQ(place.operation, "y = forward block 3(x)");
    EXPECT_EQ(place.step, 12);
  }
  for (const std::string& message : told.messages)
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(size - 1) + " fell behind first"));
}

INSTANTIATE_TEST_SUITE_P(Worlds, Chain, ::testing::Values(2, 3, 4, 8));

TEST(Blame, ALostRankIsNamedWithTheOperationThatItLeft) {
  ThreadWorldOptions options;
  options.faults.lost_rank = 2;
  options.faults.lost_step = 12;
  options.faults.lost_operation = "third";
  const auto worlds = make_thread_worlds(4, test_cluster(4), options);
  Told told;
  const double deadline = test::deadline_here(0.2);
  EXPECT_THROW(on_all_ranks(*worlds,
                            [&](World& world, Communicator& group) {
                              try {
                                for (const char* label : {"first", "second", "third", "fourth"})
                                  group.start(barrier(label, deadline)).wait();
                              } catch (const Error& error) {
                                told.add(world.rank(), error);
                                throw;
                              }
                            }),
               Timeout);  // a survivor's: the lost rank tells nobody
  ASSERT_EQ(told.places.size(), 4u);
  for (const auto& [rank, place] : told.places) {
    EXPECT_EQ(place.rank, 2);
    EXPECT_EQ(place.operation, "third");
    EXPECT_EQ(place.step, 12);
  }
}

TEST(Blame, AFailingRankIsNamedWithItsOwnPlace) {
  const auto worlds = make_thread_worlds(3, test_cluster(3));
  on_all_ranks(*worlds, [](World& world, Communicator& group) {
    if (world.rank() == 1) {
      ErrorPlace place;
      place.operation = "x = load micro-batch 0";
      place.step = 4;
      return world.abort("no such file", place);
    }
    try {
      group.start(barrier("b", 30)).wait();
      ADD_FAILURE() << "no error";
    } catch (const PeerLost& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 failed: no such file"));
      EXPECT_EQ(error.place().rank, 1);
      EXPECT_EQ(error.place().operation, "x = load micro-batch 0");
      EXPECT_EQ(error.place().step, 4);
    }
  });
}

TEST(Blame, CollectivesInAnotherOrderAreCalledADisagreement) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  Told told;
  const double deadline = test::deadline_here(0.2);
  run_ranks(*worlds, [&](World& world) {
    try {
      for (const int64_t turn : {0, 1}) {
        const int64_t lane = world.rank() == 0 ? turn : 1 - turn;
        world.communicator({0, 1}, lane)
            .start(barrier("lane " + std::to_string(lane), deadline))
            .wait();
      }
    } catch (const Error& error) {
      told.add(world.rank(), error);
      world.abort(error.what(), error.place());
    }
  });
  ASSERT_EQ(told.messages.size(), 2u);
  for (const std::string& message : told.messages)
    EXPECT_THAT(message, HasSubstr("the ranks disagree about the order of collectives"));
  EXPECT_EQ(told.places[0].second.rank, told.places[1].second.rank);
}

TEST(Blame, AnUntakenSendNamesWhatItsReceiverIsIn) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  Told told;
  const double deadline = test::deadline_here(0.1);
  run_ranks(*worlds, [&](World& world) {
    if (world.rank() == 1) {
      world.waits()->busy("slow", 3, 1);
      return told.wait_for(1);
    }
    std::vector<float> data(4);
    Call call = barrier("send x", deadline);
    call.operation = Operation::kSend;
    call.counts = {4};
    call.source = data.data();
    call.peer = 1;
    try {
      world.communicator({0, 1}, 0).start(call).wait();
      ADD_FAILURE() << "no error";
    } catch (const Timeout& error) {
      EXPECT_EQ(error.place().rank, 1);
      EXPECT_EQ(error.place().operation, "slow");
      told.add(0, error);
    }
  });
}

}  // namespace
}  // namespace strait::comm
