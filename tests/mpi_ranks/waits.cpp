// What ranks that are processes show and agree on while they wait for each other, or do not.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "strait/base/clock.h"
#include "tests/mpi_ranks/ranks.h"

namespace strait::comm {
namespace {

void pause_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

TEST(MpiWaits, AnUntakenSendGivesSignsOfLife) {
  Communicator& group = Ranks::get().all();
  if (group.size() == 1) return;
  std::vector<float> values(1 << 20, 1.0f);
  Call call;
  call.counts = {static_cast<int64_t>(values.size())};
  call.source = call.destination = values.data();
  Ticket ticket;
  if (group.position() == 0) {
    call.operation = Operation::kSend;
    call.peer = 1;
    ticket = group.start(call);
    pause_for(0.5);
    EXPECT_FALSE(ticket.done());
    EXPECT_LT(now_seconds() - Ranks::get().world.waits()->standing().beat, 0.25);
  } else if (group.position() == 1) {
    call.operation = Operation::kReceive;
    call.peer = 0;
    pause_for(1);
    ticket = group.start(call);
  }
  ticket.wait();
  group.run(Call{});
}

/// Every rank has a pace of its own, and the slowest is asked.
TEST(MpiWaits, RanksThatDoNotMeetStopAfterTheSameStep) {
  World& world = Ranks::get().world;
  const int64_t n = world.size();
  int64_t step = 0;
  do {
    pause_for(0.002 * static_cast<double>(1 + world.rank()));
    ++step;
  } while (step < 1000 && world.begins_step(step, world.rank() == n - 1 && step >= 20, 10));
  std::vector<int64_t> steps(static_cast<size_t>(n));
  Call call;
  call.operation = Operation::kAllGather;
  call.dtype = Dtype::kInt64;
  call.counts.assign(static_cast<size_t>(n), 1);
  call.source = &step;
  call.destination = steps.data();
  Ranks::get().all().run(call);
  EXPECT_EQ(steps, std::vector<int64_t>(static_cast<size_t>(n), steps.front()));
  EXPECT_GE(step, 20);
  EXPECT_LT(step, 1000);
}

}  // namespace
}  // namespace strait::comm
