// Deadlines, lost ranks, disagreement and bad arguments: who is named, and that nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <thread>

#include "strait/base/clock.h"
#include "tests/comm/thread_ranks.h"
#include "tests/pace.h"

namespace strait::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Call gather(std::vector<float>& own, std::vector<float>& whole, double deadline) {
  Call call;
  call.operation = Operation::kAllGather;
  call.counts.assign(whole.size() / own.size(), static_cast<int64_t>(own.size()));
  call.source = own.data();
  call.destination = whole.data();
  call.deadline_seconds = deadline;
  call.step = 12;
  call.label = "W[3] = all_gather(w[3])";
  return call;
}

TEST(Errors, ADeadlineNamesOperationStepAndWhoIsMissing) {
  const auto worlds = make_thread_worlds(4, test_cluster(4));
  const double deadline = test::deadline_here(0.15);
  on_all_ranks(*worlds, [deadline](World& world, Communicator& group) {
    if (world.rank() >= 2) return;  // two ranks never come
    std::vector<float> own(3), whole(12);
    Ticket ticket = group.start(gather(own, whole, deadline));
    const double begin = now_seconds();
    try {
      ticket.wait();
      ADD_FAILURE() << "no error";
    } catch (const Timeout& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("all-gather"), HasSubstr("W[3] = all_gather(w[3])"),
                                      HasSubstr("step 12"), HasSubstr("rank 2, 3"),
                                      HasSubstr("on rank " + std::to_string(world.rank()))));
      EXPECT_EQ(error.place().rank, 2);
      EXPECT_EQ(error.place().step, 12);
      EXPECT_EQ(error.place().operation, "W[3] = all_gather(w[3])");
    }
    EXPECT_LT(now_seconds() - begin, 10.0 + deadline);
  });
}

TEST(Errors, WhoComesTooLateFailsWithTheSameCauseAndTouchesNothing) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  std::atomic<bool> gone{false};
  on_all_ranks(*worlds, [&](World& world, Communicator& group) {
    std::vector<float> own(3, 1.0f), whole(6, -1.0f);
    if (world.rank() == 0) {
      EXPECT_THROW(group.start(gather(own, whole, 0.05)).wait(), Timeout);
      own.assign(3, 77.0f);  // the buffers belong to the caller again
      gone.store(true);
    } else {
      while (!gone.load()) std::this_thread::yield();
      EXPECT_THAT(message_of<Timeout>([&] { group.start(gather(own, whole, 30.0)).wait(); }),
                  AllOf(HasSubstr("on rank 1"), HasSubstr("on rank 0")));
      EXPECT_EQ(whole, std::vector<float>(6, -1.0f));
    }
    group.start(gather(own, whole, 30.0)).wait();  // the next operation meets its partner
    EXPECT_EQ(whole[0], 77.0f);
  });
}

TEST(Errors, SendAndReceiveHaveDeadlinesToo) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  std::atomic<int> gave_up{0};
  on_all_ranks(*worlds, [&](World& world, Communicator&) {
    std::vector<float> buffer(4, static_cast<float>(world.rank()));
    Communicator& lane = world.communicator({0, 1}, 3);
    Call call;
    call.counts = {4};
    call.peer = 1 - world.rank();
    call.deadline_seconds = 0.05;
    call.label = "send y";
    // A receive without a send on rank 1; then a send without a receive on rank 0.
    call.operation = world.rank() == 0 ? Operation::kSend : Operation::kReceive;
    call.source = call.destination = buffer.data();
    const int64_t first = 1;
    for (int64_t turn = 0; turn < 2; ++turn) {
      if (world.rank() == (turn == 0 ? first : 0)) {
        EXPECT_THAT(message_of<Timeout>([&] { lane.start(call).wait(); }),
                    HasSubstr("rank " + std::to_string(call.peer)));
        gave_up.fetch_add(1);
      } else {
        while (gave_up.load() <= turn) std::this_thread::yield();
        EXPECT_THROW(lane.start(call).wait(), Error);  // its partner has given up
      }
    }
    call.deadline_seconds = 30.0;
    lane.start(call).wait();  // still paired: the third send meets the third receive
    EXPECT_EQ(buffer[0], 0.0f);
  });
}

TEST(Errors, AnAbortWakesEverybodyAndNamesTheRank) {
  const auto worlds = make_thread_worlds(4, test_cluster(4));
  on_all_ranks(*worlds, [](World& world, Communicator& group) {
    std::vector<float> own(3), whole(12);
    if (world.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      world.abort("disk full");
      world.abort("again");  // the first reason stands
    } else {
      const double begin = now_seconds();
      EXPECT_THAT(message_of<PeerLost>([&] { group.start(gather(own, whole, 60.0)).wait(); }),
                  AllOf(HasSubstr("rank 2"), HasSubstr("disk full"), HasSubstr("W[3]")));
      EXPECT_LT(now_seconds() - begin, 20.0);
    }
    try {
      world.communicator(all_ranks(4), 5)
          .start(gather(own, whole, 60.0))
          .wait();  // later ones as well
      ADD_FAILURE() << "no error";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.place().rank, 2);
    }
  });
}

TEST(Errors, OthersThrowWhatTheCauseSays) {
  for (const Cause cause : {Cause::kNonFinite, Cause::kNothingFits}) {
    const auto worlds = make_thread_worlds(2, test_cluster(2));
    on_all_ranks(*worlds, [cause](World& world, Communicator& group) {
      if (world.rank() == 1) return world.abort("why", {}, cause);
      std::vector<float> own(3), whole(6);
      const auto gathers = [&] { group.start(gather(own, whole, 60.0)).wait(); };
      const std::string text = cause == Cause::kNonFinite ? message_of<NonFinite>(gathers)
                                                          : message_of<NothingFits>(gathers);
      EXPECT_THAT(text, HasSubstr("rank 1 failed: why"));
    });
  }
}

TEST(Errors, AbortEndsWaitingSendsAndReceives) {
  const auto worlds = make_thread_worlds(3, test_cluster(3));
  on_all_ranks(*worlds, [](World& world, Communicator& group) {
    std::vector<float> buffer(4);
    Call call;
    call.counts = {4};
    call.peer = 2;
    call.source = call.destination = buffer.data();
    call.operation = world.rank() == 0 ? Operation::kSend : Operation::kReceive;
    if (world.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return world.abort("gone");
    }
    EXPECT_THAT(message_of<PeerLost>([&] { group.start(call).wait(); }),
                HasSubstr("rank 2 failed: gone"));
  });
}

TEST(Errors, ALostRankIsFoundByTheDeadline) {
  ThreadWorldOptions options;
  options.faults.lost_rank = 1;
  options.faults.lost_at = 3;
  const auto worlds = make_thread_worlds(3, test_cluster(3), options);
  std::atomic<int> ended{0};
  on_all_ranks(*worlds, [&](World& world, Communicator& group) {
    std::vector<float> own(3), whole(9);
    int done = 0;
    const std::string message = message_of<Error>([&] {
      for (; done < 10; ++done) group.start(gather(own, whole, 0.1)).wait();
    });
    EXPECT_EQ(done, 3);
    EXPECT_THAT(message, HasSubstr(world.rank() == 1 ? "injected" : "still waiting for rank 1"));
    ended.fetch_add(1);
    while (ended.load() < 3) std::this_thread::yield();
  });
}

/// What rank 0 and rank 1 are told when they call differently.
std::vector<std::string> disagreement(const Call& zero, const Call& one) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  std::vector<std::string> messages(2);
  on_all_ranks(*worlds, [&](World& world, Communicator& group) {
    messages[world.rank()] =
        message_of<UserError>([&] { group.start(world.rank() == 0 ? zero : one).wait(); });
  });
  return messages;
}

TEST(Errors, DisagreementNamesBothSides) {
  std::vector<float> own(3), whole(6);
  const Call base = gather(own, whole, 30.0);
  Call reduce = base;
  reduce.operation = Operation::kReduceScatter;
  reduce.source = whole.data();
  reduce.destination = own.data();
  reduce.label = "g[3] += reduce_scatter(G[3])";
  Call integers = base, shorter = base;
  integers.dtype = Dtype::kInt32;
  shorter.counts = {3, 2};
  for (const auto& [other, text] : std::vector<std::pair<Call, std::string>>{
           {reduce, "reduce-scatter \"g[3] += reduce_scatter(G[3])\""},
           {integers, "i32"},
           {shorter, "[3, 2]"}})
    for (const std::string& message : disagreement(base, other)) {
      EXPECT_THAT(message, AllOf(HasSubstr("all-gather"), HasSubstr("fp32"), HasSubstr("[3, 3]"),
                                 HasSubstr(text)));
    }
  Call from_zero = base;
  from_zero.operation = Operation::kBroadcast;
  from_zero.counts = {3};
  Call from_one = from_zero;
  from_one.peer = 1;
  for (const std::string& message : disagreement(from_zero, from_one))
    EXPECT_THAT(message, AllOf(HasSubstr("position 0"), HasSubstr("position 1")));
  Call send = from_zero, receive = from_zero;
  send.operation = Operation::kSend;
  send.peer = 1;
  receive.operation = Operation::kReceive;
  receive.peer = 0;
  receive.counts = {2};
  for (const std::string& message : disagreement(send, receive))
    EXPECT_THAT(message, AllOf(HasSubstr("wants 2"), HasSubstr("brings 3")));
}

TEST(Errors, AFailedTicketFailsWhatWaitsForIt) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  on_all_ranks(*worlds, [](World& world, Communicator& group) {
    std::vector<float> own(3), whole(6);
    Communicator& other = world.communicator({0, 1}, 1);
    std::vector<Ticket> after;
    if (world.rank() == 0)
      after.push_back(group.start(gather(own, whole, 0.05)));  // rank 1 never joins this
    EXPECT_THAT(message_of<Timeout>([&] { other.start(gather(own, whole, 20.0), after).wait(); }),
                HasSubstr("still waiting for rank 1"));
  });
}

/// What start() says to one member of a pair.
std::string refusal(const std::function<void(Call&)>& change) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  std::vector<float> own(3), whole(6);
  Call call = gather(own, whole, 1.0);
  change(call);
  return message_of<UserError>([&] { worlds->world(0).communicator({0, 1}, 0).start(call); });
}

TEST(Errors, BadCallsAreRefusedAtOnce) {
  static std::vector<float> spare(64);
  EXPECT_THAT(refusal([](Call& call) { call.counts = {3}; }),
              AllOf(HasSubstr("expected 2 counts"), HasSubstr("rank 0")));
  EXPECT_THAT(refusal([](Call& call) { call.counts = {3, -1}; }), HasSubstr("-1"));
  EXPECT_THAT(refusal([](Call& call) { call.source = nullptr; }), HasSubstr("source is null"));
  EXPECT_THAT(refusal([](Call& call) { call.destination = nullptr; }),
              HasSubstr("destination is null"));
  EXPECT_THAT(refusal([](Call& call) { call.deadline_seconds = 0.0; }), HasSubstr("deadline"));
  EXPECT_THAT(
      refusal([](Call& call) { call.source = static_cast<const float*>(call.destination) + 1; }),
      HasSubstr("overlap at byte 4"));
  EXPECT_THAT(refusal([](Call& call) { call.source = call.destination, call.accumulate = true; }),
              HasSubstr("no in-place form"));
  EXPECT_THAT(refusal([](Call& call) {
                call.operation = Operation::kReduceScatter, call.dtype = Dtype::kFloat16;
              }),
              AllOf(HasSubstr("fp16"), HasSubstr("fp32")));
  EXPECT_THAT(refusal([](Call& call) { call.operation = Operation::kAllToAll; }),
              HasSubstr("receive counts"));
  EXPECT_THAT(refusal([](Call& call) {
                call.operation = Operation::kAllToAll, call.receive_counts = {2, 3};
                call.source = spare.data();
              }),
              HasSubstr("sends itself 3"));
  EXPECT_THAT(refusal([](Call& call) {
                call.operation = Operation::kBroadcast, call.counts = {3}, call.peer = 2;
              }),
              HasSubstr("peer 2"));
  EXPECT_THAT(refusal([](Call& call) {
                call.operation = Operation::kSend, call.counts = {3}, call.peer = 0;
              }),
              HasSubstr("this member itself"));
}

TEST(Errors, BadWorldsAndGroupsAreRefused) {
  EXPECT_THROW(make_thread_worlds(0, test_cluster(1)), UserError);
  EXPECT_THAT(message_of<UserError>([] { make_thread_worlds(3, test_cluster(2)); }),
              HasSubstr("laid out for 2"));
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  EXPECT_THROW(worlds->world(2), UserError);
  EXPECT_THAT(message_of<UserError>([&] { worlds->world(0).communicator({1}, 0); }),
              HasSubstr("not among"));
  EXPECT_THAT(message_of<UserError>([&] {
                worlds->world(0).communicator({1, 0}, 0);
              }),
              HasSubstr("ascend"));
  EXPECT_THAT(message_of<UserError>([&] {
                worlds->world(0).communicator({0, 2}, 0);
              }),
              HasSubstr("not in 0..1"));
}

TEST(Errors, RunRanksThrowsWhatTheFirstRankThrew) {
  const auto worlds = make_thread_worlds(3, test_cluster(3));
  EXPECT_THAT(message_of<UserError>([&] {
                on_all_ranks(*worlds, [](World& world, Communicator& group) {
                  if (world.rank() == 1) throw UserError("no such file");
                  std::vector<float> own(3), whole(9);
                  group.start(gather(own, whole, 60.0)).wait();
                });
              }),
              HasSubstr("no such file"));
}

TEST(Errors, AThreadThatTheSystemRefusesEndsTheRanksByName) {
  const auto worlds = make_thread_worlds(3, test_cluster(3));
  pthread_attr_t former, huge;
  ASSERT_EQ(::pthread_getattr_default_np(&former), 0);
  ::pthread_attr_init(&huge);
  ::pthread_attr_setstacksize(&huge, size_t{1} << 47);  // more than there are addresses
  ASSERT_EQ(::pthread_setattr_default_np(&huge), 0);
  const std::string message = message_of<UserError>([&] { run_ranks(*worlds, [](World&) {}); });
  ::pthread_setattr_default_np(&former);
  ::pthread_attr_destroy(&huge);
  ::pthread_attr_destroy(&former);
  EXPECT_THAT(message, HasSubstr("the system refuses a thread for rank 0 of 3"));
}

}  // namespace
}  // namespace strait::comm
