// Asynchrony: operations end while the caller computes, lanes run side by side, tickets order
// operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "strait/base/clock.h"
#include "tests/comm/thread_ranks.h"

namespace strait::comm {
namespace {

Call barrier() {
  Call call;
  call.deadline_seconds = 30.0;
  return call;
}

Call all_reduce(std::vector<double>& vector) {
  Call call = barrier();
  call.operation = Operation::kAllReduce;
  call.dtype = Dtype::kFloat64;
  call.counts = {static_cast<int64_t>(vector.size())};
  call.source = vector.data();
  call.destination = vector.data();
  return call;
}

TEST(Progress, AnOperationCompletesWhileTheCallerComputesAndNeverWaits) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  on_all_ranks(*worlds, [&](World&, Communicator& group) {
    std::vector<double> vector(100000, 1.5);
    const Ticket ticket = group.start(all_reduce(vector));
    volatile double work = 1.0;
    const SteadyTime limit = deadline_after(20.0);
    while (!ticket.done() && std::chrono::steady_clock::now() < limit)
      for (int i = 0; i < 1000; ++i) work = work * 1.000001;
    ASSERT_TRUE(ticket.done());
    EXPECT_EQ(vector, std::vector<double>(100000, 3.0));
  });
}

TEST(Progress, AChainOfOperationsCompletesWithoutAnyWait) {
  const auto worlds = make_thread_worlds(3, test_cluster(3));
  on_all_ranks(*worlds, [&](World& world, Communicator& group) {
    std::vector<double> vector(11, 1.0);
    Communicator& other = world.communicator(all_ranks(3), 1);
    Ticket last;
    for (int k = 0; k < 10; ++k)
      last = (k % 2 == 0 ? group : other).start(all_reduce(vector), {last});
    const SteadyTime limit = deadline_after(20.0);
    while (!last.done() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    ASSERT_TRUE(last.done());
    EXPECT_EQ(vector,
              std::vector<double>(11, 59049.0));  // 3^10: every operation saw the one before it
  });
}

TEST(Progress, ALaneThatWaitsForAPeerDoesNotHoldUpAnother) {
  const auto worlds = make_thread_worlds(2, test_cluster(2));
  std::atomic<bool> second_lane_done{false};
  on_all_ranks(*worlds, [&](World& world, Communicator& first) {
    Communicator& second = world.communicator(all_ranks(2), 1);
    std::vector<double> one(5, 1.0), two(5, 2.0);
    if (world.rank() == 0) {
      Ticket held =
          first.start(all_reduce(one));  // rank 1 joins only after the second lane is through
      second.start(all_reduce(two)).wait();
      EXPECT_FALSE(held.done());
      second_lane_done.store(true);
      held.wait();
    } else {
      second.start(all_reduce(two)).wait();
      while (!second_lane_done.load()) std::this_thread::yield();
      first.start(all_reduce(one)).wait();
    }
    EXPECT_EQ(one, std::vector<double>(5, 2.0));
    EXPECT_EQ(two, std::vector<double>(5, 4.0));
  });
}

/// A ticket that is not ours, as the runtime or another backend may hand one in.
struct Gate : Ticket::State {
  std::atomic<bool> open{false};
  bool done() const override { return open.load(); }
  void wait() override {
    while (!open.load()) std::this_thread::yield();
  }
};

TEST(Progress, AnOperationStartsOnlyAfterTheTicketsItWaitsFor) {
  for (const int64_t ranks : {1, 2}) {
    const auto worlds = make_thread_worlds(ranks, test_cluster(ranks));
    const auto gate = std::make_shared<Gate>();
    on_all_ranks(*worlds, [&](World& world, Communicator& group) {
      std::vector<double> vector(3, 1.0);
      Ticket ticket = group.start(all_reduce(vector), {Ticket(gate)});
      if (world.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        EXPECT_FALSE(ticket.done());
        gate->open.store(true);
      }
      ticket.wait();
      EXPECT_EQ(vector, std::vector<double>(3, static_cast<double>(ranks)));
    });
  }
}

TEST(Progress, AWorldOfOneIsDoneAtOnce) {
  const auto worlds = make_thread_worlds(1, test_cluster(1));
  Communicator& alone = worlds->world(0).communicator({0}, 0);
  std::vector<double> vector(3, 1.5);
  EXPECT_TRUE(alone.start(all_reduce(vector)).done());
  EXPECT_TRUE(alone.start(barrier()).done());
  EXPECT_EQ(vector, std::vector<double>(3, 1.5));
  Ledger ledger;
  alone.drain_ledger(ledger);
  EXPECT_TRUE(ledger.rows().empty());
}

TEST(Progress, ABarrierHoldsUntilAllHaveCome) {
  const auto worlds = make_thread_worlds(4, test_cluster(4));
  std::atomic<int> arrived{0};
  on_all_ranks(*worlds, [&](World&, Communicator& group) {
    for (int round = 1; round <= 50; ++round) {
      arrived.fetch_add(1);
      group.start(barrier()).wait();
      EXPECT_GE(arrived.load(), 4 * round);
      group.start(barrier()).wait();
    }
  });
}

TEST(Progress, SubgroupsWithStridesWorkSideBySide) {
  const auto worlds = make_thread_worlds(8, test_cluster(8));
  run_ranks(*worlds, [](World& world) {
    for (const int64_t stride : {1, 2, 4}) {
      const int64_t base = world.rank() / (2 * stride) * (2 * stride) + world.rank() % stride;
      Communicator& pair = world.communicator({base, base + stride}, 0);
      EXPECT_EQ(&pair, &world.communicator({base, base + stride}, 0));
      EXPECT_EQ(pair.position(), world.rank() == base ? 0 : 1);
      std::vector<double> vector(17, static_cast<double>(world.rank()));
      for (int k = 0; k < 20; ++k) pair.start(all_reduce(vector)).wait();
      EXPECT_EQ(vector,
                std::vector<double>(17, static_cast<double>(2 * base + stride) * (1 << 19)));
    }
  });
}

TEST(Progress, BuffersBelongToTheCallerAgainOnceTheTicketIsDone) {
  const auto worlds = make_thread_worlds(3, test_cluster(3));
  on_all_ranks(*worlds, [](World& world, Communicator& group) {
    const int64_t part = 20000;
    std::vector<double> own(part), whole(3 * part);
    for (int turn = 0; turn < 100; ++turn) {
      std::fill(own.begin(), own.end(), static_cast<double>(10 * turn + world.rank()));
      Call call = barrier();
      call.operation = Operation::kAllGather;
      call.dtype = Dtype::kFloat64;
      call.counts = {part, part, part};
      call.source = own.data();
      call.destination = whole.data();
      group.start(call).wait();
      std::fill(own.begin(), own.end(), -1.0);  // at once, while a slower member may still be busy
      for (int64_t i = 0; i < 3 * part; ++i)
        ASSERT_EQ(whole[i], static_cast<double>(10 * turn + i / part));
    }
  });
}

TEST(Progress, RandomDelaysChangeNothing) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    ThreadWorldOptions options;
    options.faults.seed = seed;
    options.faults.max_delay_seconds = 2e-4;
    const auto worlds = make_thread_worlds(4, test_cluster(4), options);
    on_all_ranks(*worlds, [&](World& world, Communicator& group) {
      Communicator& other = world.communicator(all_ranks(4), 1);
      std::vector<double> one(33, 1.0), two(33, 1.0);
      std::vector<Ticket> tickets;
      for (int k = 0; k < 20; ++k) {
        tickets.push_back(group.start(all_reduce(one)));
        tickets.push_back(other.start(all_reduce(two)));
      }
      for (Ticket& ticket : tickets) ticket.wait();
      EXPECT_EQ(one, std::vector<double>(33, static_cast<double>(int64_t{1} << 40)));
      EXPECT_EQ(two, one);
    });
  }
}

TEST(Progress, PendingOperationsEndWithTheWorld) {
  std::vector<double> vector(3, 1.0), alone(1, 1.0);
  std::vector<Ticket> tickets;
  {
    const auto worlds = make_thread_worlds(2, test_cluster(2));
    Communicator& group = worlds->world(0).communicator({0, 1}, 0);
    for (int k = 0; k < 3; ++k) tickets.push_back(group.start(all_reduce(vector)));
    Call send = barrier();
    send.operation = Operation::kSend;
    send.dtype = Dtype::kFloat64;
    send.counts = {1};
    send.peer = 1;
    send.source = alone.data();
    tickets.push_back(worlds->world(0).communicator({0, 1}, 7).start(send));
  }
  for (Ticket& ticket : tickets) {
    EXPECT_TRUE(ticket.done());
    EXPECT_THROW(ticket.wait(), PeerLost);
    EXPECT_THROW(ticket.wait(), PeerLost);  // again on every call
  }
}

}  // namespace
}  // namespace strait::comm
