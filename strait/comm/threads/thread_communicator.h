// One member's end of one communicator: a queue of operations and the worker that runs them in
// order.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "strait/comm/communicator.h"
#include "strait/comm/threads/mailbox.h"
#include "strait/comm/threads/mover.h"
#include "strait/comm/threads/rounds.h"

namespace strait::comm {

/// What the members of one communicator share.
struct Meeting {
  Meeting(const std::shared_ptr<Hub>& hub, const std::vector<int64_t>& members, int64_t lane)
      : number(communicator_number(members, lane)), rounds(hub, members, number), mailbox(rounds) {}
  const uint64_t number;  // in the table of waits
  Rounds rounds;
  Mailbox mailbox;
};

/// Injected faults of one rank; shared by its communicators.
struct RankState {
  std::atomic<int64_t> operations{0};
  std::atomic<bool> lost{false};
};

/// A worker thread, made by the first operation, runs the queue in order. A caller that waits runs
/// it in the worker's stead as long as nobody else does: that saves two thread switches where
/// latency counts.
class ThreadCommunicator final : public Communicator,
                                 public std::enable_shared_from_this<ThreadCommunicator> {
 public:
  ThreadCommunicator(std::shared_ptr<Hub> hub, std::shared_ptr<Meeting> meeting,
                     std::shared_ptr<RankState> rank_state, int64_t position);
  ~ThreadCommunicator() override;

  int64_t position() const override { return position_; }
  int64_t size() const override { return meeting_->rounds.size(); }
  Ticket start(const Call& call, const std::vector<Ticket>& after) override;
  void drain_ledger(Ledger& ledger) override;

  /// Ends the worker. Precondition: the alarm has rung, so that pending operations end at once.
  void stop();

 private:
  class Task;
  struct Outstanding {
    std::shared_ptr<Task> task;
    std::shared_ptr<Parcel> parcel;
  };

  int64_t rank() const { return meeting_->rounds.members()[position_]; }
  bool may_run() const { return queued_.load() > 0 && !running_.load(); }
  bool start_alone(const std::shared_ptr<Task>& task);
  void enqueue(const std::shared_ptr<Task>& task);
  /// Runs the first operation of the queue, unless there is none or another thread runs one.
  bool run_next();
  void run(const std::shared_ptr<Task>& task);
  void prepare(Task& task);
  void inject_faults(const Call& call);
  void await(Task& task);
  void execute(const std::shared_ptr<Task>& task);
  void run_alone(const Call& call);
  void refuse(Task& task, const Failure& failure);
  void post_send(const std::shared_ptr<Task>& task);
  void work();
  SteadyTime next_expiry();
  void expire_sends();
  void count_sent(const Call& call, int64_t level, int64_t bytes);

  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<Meeting> meeting_;
  const std::shared_ptr<RankState> rank_state_;
  const int64_t position_;
  WaitRow& row_;
  const int row_lane_;                         // -1: not shown
  const std::shared_ptr<Signal> work_signal_;  // for the worker: queue, runner, sends
  const std::shared_ptr<Signal> done_signal_;  // for whoever waits for a ticket
  std::mutex mutex_;
  std::deque<std::shared_ptr<Task>> queue_;
  std::atomic<int64_t> queued_{0};
  std::atomic<bool> running_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> sends_changed_{false};
  std::vector<Outstanding> sends_;
  int64_t next_round_ = 0;
  int64_t rounds_begun_ = 0;  // of the thread that runs
  std::thread worker_;
  Mover mover_;  // of the thread that runs
  std::mutex ledger_mutex_;
  Ledger ledger_;
};

}  // namespace strait::comm
