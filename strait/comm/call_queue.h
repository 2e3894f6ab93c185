// The calls of one member on one communicator, run in order: by a worker thread, or by whoever
// waits.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "strait/comm/communicator.h"
#include "strait/comm/failure.h"
#include "strait/comm/signal.h"

namespace strait::comm {

class CallQueue;

/// A call from start() to its end; what tickets point to.
class QueuedCall final : public Ticket::State {
 public:
  QueuedCall(std::shared_ptr<CallQueue> queue, const Call& the_call, std::vector<Ticket> the_after)
      : call(the_call), after(std::move(the_after)), queue_(std::move(queue)) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }
  void wait() override;
  std::pair<double, double> interval() const override { return {began_, ended_}; }

  void begin() {
    began_ = now_seconds();
    call.flight.begin(began_);
  }
  void complete(std::optional<Failure> failure);
  const std::shared_ptr<CallQueue>& queue() const { return queue_; }
  uint64_t communicator() const;

  const Call call;
  std::vector<Ticket>
      after;            // cleared once they are done, so that chains of tickets do not live on
  int64_t number = -1;  // of a collective, counted from 0 on its communicator

 private:
  const std::shared_ptr<CallQueue> queue_;
  std::atomic<bool> done_{false};
  std::optional<Failure> failure_;  // written before done_, as are the times
  double began_ = 0, ended_ = 0;
};

/// What a queue serves. run() and tend() are never called at the same time.
class CallRunner {
 public:
  virtual ~CallRunner() = default;
  /// Runs the call and completes it, now or in a later tend().
  virtual void run(const std::shared_ptr<QueuedCall>& call) = 0;
  /// Goes on with what run() left; returns when it must be called again at the latest.
  virtual SteadyTime tend() = 0;
  /// The rank's own thread begins, or ends, to wait for `call`.
  virtual void waiting(const QueuedCall& call) = 0;
  virtual void waited(const QueuedCall& call) = 0;
  /// Number of the communicator.
  virtual uint64_t number() const = 0;
};

/// Thread-safe. The worker thread is made by the first push.
class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  /// `spin_seconds`: of a wait before it blocks.
  CallQueue(CallRunner& runner, double spin_seconds)
      : runner_(runner), wake_(0.0), done_(spin_seconds) {}
  ~CallQueue();

  /// Appends a call. Collectives are numbered in the order of push.
  Ticket push(const Call& call, const std::vector<Ticket>& after);
  /// Runs a call on the calling thread, without the worker, when none is queued; else as push and
  /// wait.
  void run_inline(const Call& call);
  /// Runs the first call of the queue, unless there is none or another thread runs one.
  bool run_next();
  /// Has what happened elsewhere looked at: an alarm.
  void nudge();
  /// Runs what is queued and ends the worker. Precondition: calls end soon, because the alarm has
  /// rung.
  void stop();

  Signal& done_signal() { return done_; }

 private:
  friend class QueuedCall;
  bool may_run() const { return queued_.load() > 0 && !running_.load(); }
  /// False while another thread runs or tends. Whoever gets true clears running_ afterwards.
  bool take_turn() {
    bool idle = false;
    return running_.compare_exchange_strong(idle, true);
  }
  void run(const std::shared_ptr<QueuedCall>& call);
  void need_worker();
  void work();

  CallRunner& runner_;
  Signal wake_;  // the worker
  Signal done_;  // whoever waits for a ticket
  std::mutex mutex_;
  std::deque<std::shared_ptr<QueuedCall>> queue_;
  std::atomic<int64_t> queued_{0};
  std::atomic<bool> running_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> nudged_{false};
  int64_t next_number_ = 0;
  std::thread worker_;
};

}  // namespace strait::comm
