// Calls of a queue run one at a time and in order, whoever runs them.
#include "strait/comm/call_queue.h"

#include <gtest/gtest.h>

#include <thread>

namespace strait::comm {
namespace {

/// Counts what runs beside something else, or out of order.
class Watched final : public CallRunner {
 public:
  void run(const std::shared_ptr<QueuedCall>& call) override {
    enter();
    if (call->number != next_++) ++disordered;
    std::this_thread::yield();
    inside_.store(false);
    call->complete(std::nullopt);
  }
  SteadyTime tend() override {
    enter();
    ++tended;
    std::this_thread::yield();
    inside_.store(false);
    return SteadyTime::max();
  }
  void waiting(const QueuedCall&) override {}
  void waited(const QueuedCall&) override {}
  uint64_t number() const override { return 1; }

  std::atomic<int64_t> overlapping{0}, disordered{0}, tended{0};

 private:
  void enter() {
    if (inside_.exchange(true)) ++overlapping;
  }
  std::atomic<bool> inside_{false};
  std::atomic<int64_t> next_{0};
};

TEST(CallQueue, CallsAndTheWorkersOwnTasksNeverMeet) {
  Watched runner;
  const auto queue = std::make_shared<CallQueue>(runner, 20e-6);
  std::atomic<bool> ended{false};
  std::thread disturber([&] {  // makes the worker tend while the caller runs its calls itself
    while (!ended.load()) queue->nudge();
  });
  Call call;
  call.operation = Operation::kBarrier;
  // However busy the machine is: until the worker has tended to its tasks often enough between, and
  // beside, so many calls.
  constexpr int64_t kCalls = 20000, kTended = 100;
  const SteadyTime deadline = deadline_after(60);
  for (int64_t at = 0; at < kCalls || runner.tended.load() < kTended; at += 4) {
    if (std::chrono::steady_clock::now() > deadline) break;
    Ticket first = queue->push(call, {}), second = queue->push(call, {});
    queue->run_inline(call);
    second.wait();
    first.wait();
    queue->run_inline(call);
  }
  ended.store(true);
  disturber.join();
  queue->stop();
  EXPECT_EQ(runner.overlapping.load(), 0);
  EXPECT_EQ(runner.disordered.load(), 0);
  EXPECT_GE(runner.tended.load(), kTended);
}

}  // namespace
}  // namespace strait::comm
