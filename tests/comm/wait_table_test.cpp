// The table in shared memory: what is written is read, also by another process and while it is
// written.
#include "strait/comm/wait_table.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <thread>

namespace strait::comm {
namespace {

using trace::LaneStanding;
using trace::Standing;

TEST(WaitTable, ARowTellsWhatWasWritten) {
  const auto row = std::make_unique<WaitRow>();
  EXPECT_EQ(row->standing().kind, Standing::Kind::kAbsent);
  row->busy("y = forward block 3(x)", 7, 12);
  Standing standing = row->standing();
  EXPECT_EQ(standing.kind, Standing::Kind::kBusy);
  EXPECT_EQ(standing.place.operation, "y = forward block 3(x)");
  EXPECT_EQ(standing.place.step, 7);
  EXPECT_EQ(standing.place.index, 12);
  EXPECT_GT(standing.since, 0);
  const int lane = row->open(77, {1, 3, 5});
  EXPECT_EQ(row->open(77, {1, 3, 5}), lane);
  row->issue(lane);
  row->issue(lane);
  row->call(lane, {0, "all-gather", "W = all_gather(w)", 7});
  row->waits(77);
  standing = row->standing();
  EXPECT_EQ(standing.kind, Standing::Kind::kWaiting);
  EXPECT_EQ(standing.communicator, 77u);
  ASSERT_EQ(standing.lanes.size(), 1u);
  EXPECT_EQ(standing.lanes[0].turn, LaneStanding::Turn::kCalled);
  EXPECT_EQ(standing.lanes[0].members, (std::vector<int64_t>{1, 3, 5}));
  EXPECT_EQ(standing.lanes[0].issued, 2);
  EXPECT_EQ(standing.lanes[0].number, 0);
  EXPECT_EQ(standing.lanes[0].kind, "all-gather");
  EXPECT_EQ(standing.lanes[0].place.operation, "W = all_gather(w)");
  row->hold(lane, 78);
  EXPECT_EQ(row->standing().lanes[0].turn, LaneStanding::Turn::kHeld);
  EXPECT_EQ(row->standing().lanes[0].held_by, 78u);
  row->join(lane);
  EXPECT_EQ(row->standing().lanes[0].turn, LaneStanding::Turn::kJoined);
  row->end(lane);
  EXPECT_EQ(row->standing().lanes[0].turn, LaneStanding::Turn::kIdle);
  EXPECT_EQ(row->standing().lanes[0].number, 1);
  row->ended();
  EXPECT_EQ(row->standing().kind, Standing::Kind::kEnded);
}

TEST(WaitTable, APairwiseOperationDoesNotCountAsACollective) {
  const auto row = std::make_unique<WaitRow>();
  const int lane = row->open(5, {0, 1});
  row->call(lane, {0, "receive", "x", 1, 1});
  row->join(lane);
  EXPECT_EQ(row->standing().lanes[0].peer, 1);
  row->end(lane);
  EXPECT_EQ(row->standing().lanes[0].number, 0);
}

TEST(WaitTable, AFrozenRowKeepsWhatItHad) {
  const auto row = std::make_unique<WaitRow>();
  const int lane = row->open(5, {0, 1});
  row->call(lane, {4, "barrier", "b", 1});
  row->busy("last words", 1, 2);
  row->freeze();
  row->ended();
  row->join(lane);
  row->issue(lane);
  const Standing standing = row->standing();
  EXPECT_EQ(standing.place.operation, "last words");
  EXPECT_EQ(standing.lanes[0].turn, LaneStanding::Turn::kCalled);
  EXPECT_EQ(standing.lanes[0].issued, 0);
}

TEST(WaitTable, ALostRowOnlyEndsWhatHadBegun) {
  const auto row = std::make_unique<WaitRow>();
  const int begun = row->open(5, {0, 1}), fatal = row->open(6, {0, 1});
  row->call(begun, {4, "barrier", "begun", 1});
  row->join(begun);
  row->call(fatal, {2, "barrier", "fatal", 1});
  row->lose("fatal", 1);
  row->end(begun);
  row->call(begun, {5, "barrier", "never", 2});
  row->join(fatal);
  row->waits(5);
  const Standing standing = row->standing();
  EXPECT_EQ(standing.kind, Standing::Kind::kBusy);
  EXPECT_EQ(standing.place.operation, "fatal");
  EXPECT_EQ(standing.lanes[0].turn, LaneStanding::Turn::kIdle);
  EXPECT_EQ(standing.lanes[0].number, 5);
  EXPECT_EQ(standing.lanes[1].turn, LaneStanding::Turn::kCalled);
}

TEST(WaitTable, AGoneRankKeepsItsLastWords) {
  const auto row = std::make_unique<WaitRow>();
  row->busy("forward", 3, 1);
  row->beat(42.5);
  row->mark_gone();
  EXPECT_EQ(row->standing().kind, Standing::Kind::kMissing);
  EXPECT_EQ(row->standing().place.operation, "forward");
  EXPECT_EQ(row->standing().beat, 42.5);
  const int lane = row->open(5, {0, 1});
  row->call(lane, {0, "barrier", "b", 4});
  row->waits(5);
  EXPECT_EQ(row->standing().kind, Standing::Kind::kMissing);
  EXPECT_EQ(row->standing().communicator, 5u);
  EXPECT_EQ(row->standing().lanes[0].place.operation, "b");
}

TEST(WaitTable, WhatHasEndedIsNoLongerWhatTheRankIsIn) {
  const auto row = std::make_unique<WaitRow>();
  row->busy("forward", 3, 1, 10.0);
  row->idle(10.5);
  EXPECT_EQ(row->standing().kind, Standing::Kind::kBusy);
  EXPECT_EQ(row->standing().place.operation, "between operations");
  EXPECT_EQ(row->standing().place.step, 3);
  EXPECT_EQ(row->standing().since, 10.5);
  row->keep(11.0, 1.0);
  row->busy("backward", 3, 2, 11.5);
  EXPECT_EQ(row->standing().place.operation, "backward");
  EXPECT_EQ(row->kept_standing().place.operation, "between operations");
}

TEST(WaitTable, TheEvidenceIsKeptOnceInAWindow) {
  const auto row = std::make_unique<WaitRow>();
  const int lane = row->open(5, {0, 1});
  row->issue(lane);
  row->call(lane, {0, "barrier", "first", 1});
  row->busy("early", 1, 1);
  EXPECT_EQ(row->kept_standing().place.operation, "early");  // never kept: now
  row->keep(100, 1);
  row->busy("later", 1, 2);
  row->issue(lane);
  row->join(lane);
  row->keep(100.5, 1);  // another one whose deadline passes a little later
  EXPECT_EQ(row->kept_standing().place.operation, "early");
  EXPECT_EQ(row->kept_standing().lanes[0].turn, LaneStanding::Turn::kCalled);
  EXPECT_EQ(row->kept_standing().lanes[0].issued, 1);
  EXPECT_EQ(row->standing().place.operation, "later");
  EXPECT_EQ(row->standing().lanes[0].issued, 2);
  row->keep(101.5, 1);
  EXPECT_EQ(row->kept_standing().place.operation, "later");
  EXPECT_EQ(row->kept_standing().lanes[0].turn, LaneStanding::Turn::kJoined);
}

TEST(WaitTable, LongLabelsAreCutAndLanesBeyondTheLastAreIgnored) {
  const auto row = std::make_unique<WaitRow>();
  row->busy(std::string(300, 'x'), 0, 0);
  EXPECT_EQ(row->standing().place.operation, std::string(126, 'x') + "..");
  for (uint64_t id = 1; id <= WaitRow::kLanes; ++id) EXPECT_GE(row->open(id, {0}), 0);
  const int none = row->open(1000, {0});
  EXPECT_EQ(none, -1);
  row->call(none, {0, "barrier", "b", 0});
  row->issue(none);
  row->join(none);
  row->end(none);
  EXPECT_EQ(row->standing().lanes.size(), static_cast<size_t>(WaitRow::kLanes));
}

TEST(WaitTable, AnIrregularGroupIsReadFromTheRowsThatShowIt) {
  std::vector<std::unique_ptr<WaitRow>> rows;
  WaitRows table;
  for (int rank = 0; rank < 5; ++rank) table.push_back(rows.emplace_back(new WaitRow).get());
  const std::vector<int64_t> members = {0, 1, 4};
  for (const int64_t rank : members) rows[rank]->open(communicator_number(members, 0), members);
  table[3] = nullptr;
  const std::vector<Standing> ranks = standings(table);
  EXPECT_EQ(ranks[4].lanes[0].members, members);
  EXPECT_EQ(ranks[3].kind, Standing::Kind::kAbsent);
}

TEST(WaitTable, CommunicatorsHaveNumbersOfTheirOwn) {
  EXPECT_NE(communicator_number({0, 1}, 0), communicator_number({0, 1}, 1));
  EXPECT_NE(communicator_number({0, 1}, 0), communicator_number({0, 2}, 0));
  EXPECT_NE(communicator_number({0, 1}, 2), communicator_number({0, 1, 2}, 0));
  EXPECT_EQ(communicator_number({0, 1}, 0), communicator_number({0, 1}, 0));
}

TEST(WaitTable, AReaderNeverSeesHalfAValue) {
  const auto row = std::make_unique<WaitRow>();
  const int lane = row->open(9, {0, 1});
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int64_t i = 0; !stop.load(); ++i) {
      const std::string text(40 + i % 50, static_cast<char>('a' + i % 26));
      row->busy(text, i, i);
      row->call(lane, {i, "all-gather", text, i});
    }
  });
  for (int turn = 0; turn < 20000; ++turn) {
    const Standing standing = row->standing();
    const std::string& text = standing.place.operation;
    ASSERT_EQ(text, std::string(text.size(), text.empty() ? 'a' : text[0]));
    ASSERT_EQ(standing.place.step, standing.place.index);
    if (!text.empty()) {
      ASSERT_EQ(text.size(), static_cast<size_t>(40 + standing.place.step % 50));
      ASSERT_EQ(text[0], static_cast<char>('a' + standing.place.step % 26));
    }
    const std::string& other = standing.lanes[0].place.operation;
    ASSERT_EQ(other, std::string(other.size(), other.empty() ? 'a' : other[0]));
  }
  stop.store(true);
  writer.join();
}

TEST(WaitTable, AnotherProcessReadsItAndARowOfADeadWriterStaysReadable) {
  void* memory =
      ::mmap(nullptr, sizeof(WaitRow), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* row = static_cast<WaitRow*>(memory);  // zero-filled memory is a row
  const pid_t child = ::fork();
  if (child == 0) {
    const int lane = row->open(3, {0, 1});
    row->call(lane, {2, "all-reduce", "g = all_reduce(g)", 11});
    for (int64_t i = 0;; ++i) row->busy("over and over", i, i);
  }
  while (row->standing().place.step < 1000) std::this_thread::yield();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const Standing standing = row->standing();
  EXPECT_EQ(standing.place.operation, "over and over");
  EXPECT_EQ(standing.lanes[0].place.operation, "g = all_reduce(g)");
  row->busy("by another writer", 1, 1);  // also when the dead one held the cell
  EXPECT_EQ(row->standing().place.operation, "by another writer");
  ::munmap(memory, sizeof(WaitRow));
}

/// Stopped at any moment, as a busy machine does with a thread, a writer leaves whole values.
TEST(WaitTable, AWriterThatIsHeldUpLeavesTheValueBefore) {
  void* memory =
      ::mmap(nullptr, sizeof(WaitRow), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* row = static_cast<WaitRow*>(memory);
  const pid_t child = ::fork();
  if (child == 0) {
    for (int64_t i = 0;; ++i) row->busy(std::string(90, static_cast<char>('a' + i % 26)), i, i);
  }
  while (row->standing().place.step < 1000) std::this_thread::yield();
  int torn = 0;
  for (int turn = 0; turn < 300; ++turn) {
    ::kill(child, SIGSTOP);
    ::waitpid(child, nullptr, WUNTRACED);
    const trace::OperationPlace place = row->standing().place;
    torn += place.operation != std::string(90, static_cast<char>('a' + place.step % 26)) ||
            place.step != place.index;
    ::kill(child, SIGCONT);
    std::this_thread::sleep_for(std::chrono::microseconds(100 + turn));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(torn, 0);
  ::munmap(memory, sizeof(WaitRow));
}

}  // namespace
}  // namespace strait::comm
