// Who is named: standings written by hand, one case each, and the expected answer from the case.
#include "strait/trace/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace strait::trace {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Turn = LaneStanding::Turn;

/// A rank that waits, joined in collective `number` of communicator `id`.
LaneStanding lane(uint64_t id, std::vector<int64_t> members, int64_t number, Turn turn,
                  const std::string& operation = "all-gather W") {
  LaneStanding at;
  at.communicator = id;
  at.members = std::move(members);
  at.number = number;
  at.issued = turn == Turn::kIdle ? number : number + 1;
  at.turn = turn;
  at.kind = "all-gather";
  at.place = {operation, 7, -1};
  at.since = 100;
  return at;
}

LaneStanding in_step(int64_t step, LaneStanding at) {
  at.place.step = step;
  return at;
}

Standing waiting(LaneStanding at) {
  Standing standing;
  standing.kind = Standing::Kind::kWaiting;
  standing.communicator = at.communicator;
  standing.lanes = {std::move(at)};
  return standing;
}

Standing busy(const std::string& operation, int64_t step, int64_t index = 4) {
  Standing standing;
  standing.kind = Standing::Kind::kBusy;
  standing.place = {operation, step, index};
  standing.since = 99.5;
  return standing;
}

Verdict verdict(const std::vector<Standing>& ranks) {
  const std::optional<Verdict> found = judge(ranks, all_waits(ranks), 101);
  EXPECT_TRUE(found.has_value());
  return found.value_or(Verdict{});
}

TEST(Verdict, ARankInComputeIsNamedWithItsOperation) {
  std::vector<Standing> ranks(4, waiting(lane(1, {0, 1, 2, 3}, 5, Turn::kJoined)));
  ranks[2] = busy("y = forward block 3(x)", 7);
  ranks[2].lanes = {lane(1, {0, 1, 2, 3}, 5, Turn::kIdle)};
  const Verdict found = verdict(ranks);
  EXPECT_EQ(found.fault, Fault::kBusy);
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.place.operation, "y = forward block 3(x)");
  EXPECT_EQ(found.place.step, 7);
  EXPECT_DOUBLE_EQ(found.seconds, 1.5);
  EXPECT_THAT(found.waiting, ElementsAre(0, 1, 3));
  EXPECT_THAT(found.text, AllOf(HasSubstr("rank 2 fell behind first"), HasSubstr("forward block 3"),
                                HasSubstr("step 7"), HasSubstr("ranks 0, 1, 3 wait")));
}

TEST(Verdict, AChainThroughOtherCommunicatorsLeadsToItsEnd) {
  // 0 waits for 1 in A, 1 waits for 2 in B, 2 waits for 3 in C, 3 computes.
  std::vector<Standing> ranks = {waiting(lane(1, {0, 1}, 2, Turn::kJoined, "A")),
                                 waiting(lane(2, {1, 2}, 9, Turn::kJoined, "B")),
                                 waiting(lane(3, {2, 3}, 4, Turn::kJoined, "C")), busy("slow", 6)};
  for (const Wait& start : {Wait{0, 1, -1, {}}, Wait{1, 2, -1, {}}, Wait{2, 3, -1, {}}}) {
    const std::optional<Verdict> found = judge(ranks, {start}, 101);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->rank, 3);
    EXPECT_EQ(found->place.operation, "slow");
    EXPECT_EQ(found->waiting.size(), static_cast<size_t>(3 - start.rank));
    EXPECT_EQ(found->waiting.front(), start.rank);
  }
}

TEST(Verdict, AQueuedOperationLeadsToTheOneInFrontOfIt) {
  // Rank 1 has issued number 3 of communicator 1 and even computes, but number 2 waits for rank 2
  // there.
  LaneStanding queue = lane(1, {0, 1, 2}, 2, Turn::kJoined, "second");
  queue.issued = 4;
  Standing one = busy("ahead of its transfers", 7);
  one.lanes = {queue};
  const std::vector<Standing> ranks = {waiting(lane(1, {0, 1, 2}, 3, Turn::kJoined, "third")), one,
                                       busy("late", 7, 1)};
  EXPECT_EQ(verdict(ranks).rank, 2);
  EXPECT_EQ(verdict(ranks).place.operation, "late");
}

TEST(Verdict, AHeldOperationLeadsToTheOneItWaitsFor) {
  LaneStanding held = lane(1, {0, 1}, 0, Turn::kHeld, "held");
  held.held_by = 2;
  Standing one = busy("ahead", 7);
  one.lanes = {held, lane(2, {1, 2}, 0, Turn::kJoined, "first")};
  const std::vector<Standing> ranks = {waiting(lane(1, {0, 1}, 0, Turn::kJoined)), one,
                                       busy("late", 7)};
  EXPECT_EQ(verdict(ranks).rank, 2);
  EXPECT_THAT(verdict(ranks).waiting, ElementsAre(0, 1));
}

TEST(Verdict, ARankThatWasCalledAndDoesNotComeIsSilent) {
  std::vector<Standing> ranks(3, waiting(lane(1, {0, 1, 2}, 5, Turn::kJoined)));
  ranks[1] = waiting(in_step(8, lane(1, {0, 1, 2}, 5, Turn::kCalled, "its own turn")));
  const Verdict found = verdict(ranks);
  EXPECT_EQ(found.fault, Fault::kSilent);
  EXPECT_EQ(found.rank, 1);
  EXPECT_EQ(found.place.operation, "its own turn");
  EXPECT_EQ(found.place.step, 8);
}

TEST(Verdict, AMissingRankComesBeforeOneThatComputes) {
  std::vector<Standing> ranks(4, waiting(lane(1, {0, 1, 2, 3}, 5, Turn::kJoined, "gather")));
  ranks[1] = busy("computes", 2);
  ranks[3] = Standing{};
  const Verdict found = verdict(ranks);
  EXPECT_EQ(found.fault, Fault::kMissing);
  EXPECT_EQ(found.rank, 3);
  EXPECT_EQ(found.place.operation, "gather");
  EXPECT_EQ(found.place.step, 7);
}

TEST(Verdict, AnEndedAndAnUntoldRankAreNamedWithWhatTheyMiss) {
  std::vector<Standing> ranks(2, waiting(lane(1, {0, 1}, 5, Turn::kJoined, "gather")));
  ranks[1] = Standing{};
  ranks[1].kind = Standing::Kind::kEnded;
  EXPECT_EQ(verdict(ranks).fault, Fault::kEnded);
  EXPECT_EQ(verdict(ranks).place.operation, "gather");
  ranks[1].kind = Standing::Kind::kAbsent;
  EXPECT_EQ(verdict(ranks).fault, Fault::kSilent);
  EXPECT_EQ(verdict(ranks).rank, 1);
}

TEST(Verdict, OfSeveralLateRanksTheOneBehindInProgramOrderIsNamed) {
  std::vector<Standing> ranks(4, waiting(lane(1, {0, 1, 2, 3}, 5, Turn::kJoined)));
  ranks[1] = busy("later step", 8, 0);
  ranks[2] = busy("later op", 7, 9);
  ranks[3] = busy("first", 7, 3);
  EXPECT_EQ(verdict(ranks).rank, 3);
  ranks[3] = busy("same", 7, 9);
  EXPECT_EQ(verdict(ranks).rank, 2);  // then the lower rank
}

TEST(Verdict, RanksThatWaitForEachOtherDisagreeAboutTheOrder) {
  // Rank 0: A on communicator 1, then B on 2. Rank 1: the other way round.
  const std::vector<Standing> ranks = {waiting(lane(1, {0, 1}, 0, Turn::kJoined, "A")),
                                       waiting(in_step(6, lane(2, {0, 1}, 0, Turn::kJoined, "B")))};
  const Verdict found = verdict(ranks);
  EXPECT_EQ(found.fault, Fault::kDisorder);
  EXPECT_EQ(found.rank, 1);  // its step is the earlier one
  EXPECT_EQ(found.place.operation, "B");
  EXPECT_THAT(found.waiting, ElementsAre(0, 1));
  EXPECT_THAT(found.text, HasSubstr("disagree about the order"));
}

TEST(Verdict, TwoKindsOfCollectiveInOnePlaceAreADisagreement) {
  std::vector<Standing> ranks(2, waiting(lane(1, {0, 1}, 5, Turn::kJoined, "gather")));
  ranks[1].lanes[0].kind = "reduce-scatter";
  EXPECT_EQ(verdict(ranks).fault, Fault::kDisorder);
  EXPECT_EQ(verdict(ranks).rank, 0);
}

TEST(Verdict, WhenAllHaveJoinedTheTransferItselfIsStuck) {
  const std::vector<Standing> ranks(3, waiting(lane(1, {0, 1, 2}, 5, Turn::kJoined)));
  const Verdict found = verdict(ranks);
  EXPECT_EQ(found.fault, Fault::kTransfer);
  EXPECT_THAT(found.waiting, ElementsAre(0, 1, 2));
  EXPECT_THAT(found.text, HasSubstr("its data does not arrive"));
}

TEST(Verdict, InAStuckTransferTheMemberWhoseSignsOfLifeStoppedIsSilent) {
  std::vector<Standing> ranks(3, waiting(lane(1, {0, 1, 2}, 5, Turn::kJoined)));
  for (Standing& standing : ranks) standing.beat = 100.99;
  EXPECT_EQ(verdict(ranks).fault, Fault::kTransfer);
  ranks[1].beat = 100.2;
  EXPECT_EQ(verdict(ranks).fault, Fault::kSilent);
  EXPECT_EQ(verdict(ranks).rank, 1);
}

TEST(Verdict, AMemberThatTheOthersLeftBehindInAnOperationIsSilentThere) {
  std::vector<Standing> ranks(3, waiting(lane(1, {0, 1, 2}, 6, Turn::kJoined, "next")));
  ranks[2] = waiting(lane(1, {0, 1, 2}, 5, Turn::kJoined, "left in"));
  ranks[2].lanes[0].issued = 7;
  const Verdict found = verdict(ranks);
  EXPECT_EQ(found.fault, Fault::kSilent);
  EXPECT_EQ(found.rank, 2);
  EXPECT_EQ(found.place.operation, "left in");
}

TEST(Verdict, ARankBetweenItsOperationsIsNamedAtTheOneItOwes) {
  std::vector<Standing> ranks = {waiting(lane(1, {0, 1}, 5, Turn::kJoined, "gather")),
                                 busy("between operations", 7)};
  EXPECT_EQ(verdict(ranks).fault, Fault::kSilent);
  EXPECT_EQ(verdict(ranks).rank, 1);
  EXPECT_EQ(verdict(ranks).place.operation, "gather");
  ranks[1].kind = Standing::Kind::kMissing;
  EXPECT_EQ(verdict(ranks).fault, Fault::kMissing);
  EXPECT_EQ(verdict(ranks).place.operation, "gather");
}

TEST(Verdict, OfMembersLeftBehindTheOneWhoseSignsOfLifeStoppedIsSilent) {
  // 3 got what it needed of number 5 and went on; 0 and 1 still wait in it for 2, which is stopped.
  std::vector<Standing> ranks(4, waiting(lane(1, {0, 1, 2, 3}, 5, Turn::kJoined, "left in")));
  ranks[3] = waiting(lane(1, {0, 1, 2, 3}, 6, Turn::kJoined, "next"));
  for (Standing& standing : ranks) standing.beat = 100.99;
  ranks[2].beat = ranks[3].beat = 100.2;
  EXPECT_EQ(verdict(ranks).fault, Fault::kSilent);
  EXPECT_EQ(verdict(ranks).rank, 2);
}

TEST(Verdict, AMissingMemberOfAStuckTransferIsNamedThere) {
  std::vector<Standing> ranks(3, waiting(lane(1, {0, 1, 2}, 5, Turn::kJoined)));
  ranks[2].kind = Standing::Kind::kMissing;
  ranks[2].place = {"computes beside it", 7, -1};
  EXPECT_EQ(verdict(ranks).fault, Fault::kMissing);
  EXPECT_EQ(verdict(ranks).rank, 2);
  EXPECT_EQ(verdict(ranks).place.operation, "all-gather W");
}

TEST(Verdict, AMissingRankIsNamedWithItsLastOperation) {
  std::vector<Standing> ranks(2, waiting(lane(1, {0, 1}, 5, Turn::kJoined, "missed")));
  ranks[1] = busy("last words", 7);
  ranks[1].kind = Standing::Kind::kMissing;
  ranks[1].lanes = {lane(1, {0, 1}, 5, Turn::kIdle)};
  EXPECT_EQ(verdict(ranks).place.operation, "last words");
  // Its program waited, on another communicator, for what itself waited for a third one.
  LaneStanding held = lane(2, {1}, 3, Turn::kHeld, "held");
  held.held_by = 3;
  ranks[1] = waiting(held);
  ranks[1].kind = Standing::Kind::kMissing;
  ranks[1].lanes.push_back(lane(3, {0, 1}, 8, Turn::kCalled, "in front"));
  EXPECT_EQ(verdict(ranks).fault, Fault::kMissing);
  EXPECT_EQ(verdict(ranks).place.operation, "in front");
  // What it waited for had ended.
  ranks[1].lanes = {lane(2, {1}, 3, Turn::kIdle)};
  EXPECT_EQ(verdict(ranks).place.operation, "missed");
}

TEST(Verdict, ARankThatDoesNotGoOnAfterWhatHeldItUpIsSilent) {
  // Rank 2 was stopped between the end of what its operation waited for and the operation itself.
  std::vector<Standing> ranks(3, waiting(lane(1, {0, 1, 2}, 5, Turn::kJoined, "first")));
  ranks[1] = waiting(lane(2, {1, 2}, 8, Turn::kJoined, "second"));
  LaneStanding held = lane(2, {1, 2}, 8, Turn::kHeld, "second");
  held.held_by = 4;
  ranks[2] = waiting(held);
  ranks[2].lanes.push_back(lane(4, {0, 2}, 3, Turn::kIdle));
  for (const Wait& start : {Wait{0, 1, -1, {}}, Wait{1, 2, -1, {}}}) {
    const std::optional<Verdict> found = judge(ranks, {start}, 101);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->fault, Fault::kSilent);
    EXPECT_EQ(found->rank, 2);
  }
}

TEST(Verdict, AReceiveLeadsToItsPeerOnly) {
  LaneStanding receive = lane(1, {0, 1, 2}, 0, Turn::kJoined, "receive");
  receive.peer = 2;
  const std::vector<Standing> ranks = {waiting(receive), busy("innocent", 1), busy("sender", 7)};
  EXPECT_EQ(verdict(ranks).rank, 2);
}

TEST(Verdict, AnUntakenSendLeadsToItsPeer) {
  Standing sender;
  sender.kind = Standing::Kind::kWaiting;
  sender.communicator = 1;
  sender.peer = 2;
  sender.place = {"send x", 7, -1};
  const std::vector<Standing> ranks = {sender, waiting(lane(2, {0, 1}, 0, Turn::kJoined)),
                                       busy("slow receiver", 7)};
  EXPECT_EQ(verdict(ranks).rank, 2);
  EXPECT_THAT(verdict(ranks).waiting, ElementsAre(0, 1));
  const std::optional<Verdict> found = judge(ranks, {{0, 1, 2, {"send x", 7, -1}}}, 101);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->place.operation, "slow receiver");
}

/// The program of the sender waits for a message to be taken that has not been sent.
TEST(Verdict, ASendThatHasNotBegunIsOfItsSender) {
  LaneStanding receive = lane(1, {0, 1}, 0, Turn::kJoined, "receive"), send = receive;
  receive.peer = 1;
  send = lane(1, {0, 1}, 0, Turn::kCalled, "send x");
  send.peer = 0;
  send.place = {"send x", 7, -1};
  Standing sender = waiting(send);
  sender.peer = 0;
  sender.place = send.place;
  const std::optional<Verdict> found = judge({waiting(receive), sender}, {{0, 1, -1, {}}}, 101);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->fault, Fault::kSilent);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->place.operation, "send x");
}

/// Both are in the message; the one that shows no signs of life has stopped.
TEST(Verdict, OfTwoInAMessageTheQuietOneIsSilent) {
  LaneStanding receive = lane(1, {0, 1}, 0, Turn::kJoined, "receive");
  receive.peer = 1;
  receive.since = 90;
  Standing sender = waiting(lane(1, {0, 1}, 0, Turn::kIdle));
  sender.peer = 0;
  sender.place = {"send x", 7, -1};
  sender.since = 91;
  sender.beat = 92;
  Standing receiver = waiting(receive);
  receiver.beat = 100;
  std::vector<Standing> ranks = {receiver, sender};
  EXPECT_EQ(verdict(ranks).fault, Fault::kSilent);
  EXPECT_EQ(verdict(ranks).rank, 1);
  EXPECT_EQ(verdict(ranks).place.operation, "send x");
  const std::optional<Verdict> of_sender = judge(ranks, {{1, 1, 0, {"send x", 7, -1}}}, 101);
  ASSERT_TRUE(of_sender);
  EXPECT_EQ(of_sender->rank, 1);
  std::swap(ranks[0].beat, ranks[1].beat);
  EXPECT_EQ(verdict(ranks).rank, 0);
  ranks[0].beat = ranks[1].beat;
  EXPECT_EQ(verdict(ranks).fault, Fault::kDisorder);
}

TEST(Verdict, NobodyWaitsMeansNoVerdict) {
  const std::vector<Standing> ranks(3, busy("x", 1));
  EXPECT_FALSE(judge(ranks, all_waits(ranks), 101));
  EXPECT_FALSE(judge({}, {{0, 1, -1, {}}}, 101));
}

/// Trees of waits at random: every rank waits in a communicator of its own for a rank that comes
/// before it in a random order; the root computes. From everywhere the root is found.
TEST(Verdict, FromEveryRankOfARandomTreeTheRootIsFound) {
  uint64_t state = 12345;
  const auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % below;
  };
  for (int round = 0; round < 200; ++round) {
    const int64_t size = 2 + static_cast<int64_t>(draw(15));
    std::vector<int64_t> order(size);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = size - 1; i > 0; --i) std::swap(order[i], order[draw(i + 1)]);
    std::vector<Standing> ranks(size);
    ranks[order[0]] = busy("root", 3);
    for (int64_t i = 1; i < size; ++i) {
      std::vector<int64_t> members = {order[i], order[draw(i)]};
      std::sort(members.begin(), members.end());
      ranks[order[i]] =
          waiting(in_step(4, lane(static_cast<uint64_t>(i), members, 0, Turn::kJoined, "wait")));
    }
    for (const Wait& start : all_waits(ranks)) {
      const std::optional<Verdict> found = judge(ranks, {start}, 101);
      ASSERT_TRUE(found);
      EXPECT_EQ(found->rank, order[0]);
      EXPECT_EQ(found->place.operation, "root");
    }
    EXPECT_EQ(verdict(ranks).waiting.size(), static_cast<size_t>(size - 1));
  }
}

}  // namespace
}  // namespace strait::trace
