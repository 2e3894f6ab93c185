#include "strait/comm/threads/thread_communicator.h"

#include <algorithm>
#include <utility>

#include "strait/base/random.h"
#include "strait/comm/call_check.h"
#include "strait/comm/threads/round_run.h"
#include "strait/threads/cores.h"
#include "strait/threads/thread_limit.h"

namespace strait::comm {

/// An operation from start() to its end; what tickets point to.
class ThreadCommunicator::Task final : public Ticket::State {
 public:
  Task(std::shared_ptr<ThreadCommunicator> the_owner, const Call& the_call,
       std::vector<Ticket> the_after)
      : owner(std::move(the_owner)),
        call(std::make_shared<const Call>(the_call)),
        after(std::move(the_after)) {}

  bool done() const override { return done_.load(std::memory_order_acquire); }

  void wait() override {
    const bool waits = !done() && owner->row_lane_ >= 0;
    if (waits) show_wait();
    while (!done() && owner->run_next()) {
    }
    owner->done_signal_->wait([this] { return done(); }, SteadyTime::max());
    if (failure_) raise(*failure_);
    if (waits) owner->row_.busy("between operations", call->step, -1);
  }

  std::pair<double, double> interval() const override { return {began_, ended_}; }
  void begin() {
    began_ = now_seconds();
    call->flight.begin(began_);
  }

  void complete(std::optional<Failure> failure) {
    ended_ = now_seconds();
    call->flight.end(ended_, failure.has_value());
    failure_ = std::move(failure);
    done_.store(true, std::memory_order_release);
    owner->done_signal_->notify();
  }

  const std::shared_ptr<ThreadCommunicator> owner;
  const std::shared_ptr<const Call> call;
  std::vector<Ticket>
      after;           // cleared once they are done, so that chains of tickets do not live on
  int64_t round = -1;  // sequence number, when it is a collective
  std::shared_ptr<const tensor::Mark> ready;  // work of a device that must end before; or null

 private:
  std::atomic<bool> done_{false};
  void show_wait() const {
    const uint64_t communicator = owner->meeting_->number;
    if (call->operation != Operation::kSend) return owner->row_.waits(communicator);
    owner->row_.waits_for_peer(communicator, owner->meeting_->rounds.members()[call->peer],
                               call->label, call->step);
  }

  std::optional<Failure> failure_;  // written before done_, as are the times
  double began_ = 0, ended_ = 0;
};

namespace {

/// For what only done() is known of, such as tickets of another backend or marks of a device:
/// polls.
template <class Awaited>
bool poll(const Awaited& awaited, Hub& hub, SteadyTime deadline) {
  for (int64_t turn = 0; !awaited.done(); ++turn) {
    if (hub.alarm.rung() || hub.clock.now() > deadline) return awaited.done();
    if (turn < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(std::min<int64_t>(turn, 500)));
  }
  return true;
}

}  // namespace

ThreadCommunicator::ThreadCommunicator(std::shared_ptr<Hub> hub, std::shared_ptr<Meeting> meeting,
                                       std::shared_ptr<RankState> rank_state, int64_t position)
    : hub_(std::move(hub)),
      meeting_(std::move(meeting)),
      rank_state_(std::move(rank_state)),
      position_(position),
      row_(hub_->own_rows[meeting_->rounds.members()[position]]),
      row_lane_(hub_->cluster.ranks == 1 ? -1
                                         : row_.open(meeting_->number, meeting_->rounds.members())),
      work_signal_(hub_->make_signal(0.0)),
      done_signal_(hub_->make_signal(hub_->spin_seconds)),
      mover_(hub_->options.device, hub_->options.faults.repeats) {}

ThreadCommunicator::~ThreadCommunicator() = default;

Ticket ThreadCommunicator::start(const Call& call, const std::vector<Ticket>& after) {
  check_call(call, position_, size(), rank());
  const auto task = std::make_shared<Task>(shared_from_this(), call, after);
  if (start_alone(task)) return Ticket(task);
  task->ready = mover_.mark(call.source, call.destination);
  enqueue(task);
  return Ticket(task);
}

/// In a world of one nothing has to be waited for: no thread, no queue.
bool ThreadCommunicator::start_alone(const std::shared_ptr<Task>& task) {
  if (size() > 1) return false;
  for (const Ticket& ticket : task->after)
    if (!ticket.done()) return false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (running_.load() || !queue_.empty()) return false;
    running_.store(true);
  }
  run(task);
  running_.store(false);
  if (queued_.load() > 0) work_signal_->notify();
  return true;
}

void ThreadCommunicator::enqueue(const std::shared_ptr<Task>& task) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!worker_.joinable())  // before anything is queued: it may be refused
      worker_ = start_thread("transfers", [this, cores = cores_before_binding()] {
        run_on(cores);
        take_short_turns();
        work();
      });
    if (!is_pairwise(task->call->operation)) {
      task->round = next_round_++;
      row_.issue(row_lane_);
    }
    queue_.push_back(task);
    queued_.fetch_add(1);
  }
  work_signal_->notify();
}

bool ThreadCommunicator::run_next() {
  std::shared_ptr<Task> task;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (running_.load() || queue_.empty()) return false;
    running_.store(true);
    task = std::move(queue_.front());
    queue_.pop_front();
    queued_.fetch_sub(1);
  }
  run(task);
  running_.store(false);
  if (queued_.load() > 0) work_signal_->notify();
  return true;
}

void ThreadCommunicator::run(const std::shared_ptr<Task>& task) {
  std::optional<Failure> failure;
  try {
    prepare(*task);
    task->begin();
    execute(task);
    row_.end(row_lane_);
    if (task->call->operation == Operation::kSend) return;  // the receiver completes it
  } catch (...) {
    failure = current_failure();
  }
  task->complete(std::move(failure));
}

/// Faults, then the tickets that this operation waits for. On failure its peers hear of it at once.
void ThreadCommunicator::prepare(Task& task) {
  const Call& call = *task.call;
  if (row_lane_ >= 0 && !hub_->alarm.rung()) {
    const bool pairwise = is_pairwise(call.operation);
    row_.call(row_lane_,
              {pairwise ? rounds_begun_ : task.round, operation_name(call.operation), call.label,
               call.step, pairwise ? meeting_->rounds.members()[call.peer] : -1});
    if (!pairwise) rounds_begun_ = task.round + 1;
  }
  inject_faults(call);
  try {
    await(task);
    if (hub_->alarm.rung()) hub_->alarm.raise_for(call, rank());
  } catch (...) {
    const Failure failure = current_failure();
    if (!rank_state_->lost.load()) refuse(task, failure);  // a lost rank tells nobody
    raise(failure);
  }
}

void ThreadCommunicator::inject_faults(const Call& call) {
  const ThreadFaults& faults = hub_->options.faults;
  const int64_t count = rank_state_->operations.fetch_add(1);
  if (faults.lost_rank == rank()) {
    const bool now = faults.lost_step >= 0
                         ? call.step == faults.lost_step && call.label == faults.lost_operation
                         : count >= faults.lost_at;
    if (now) {
      row_.lose(call.label, call.step);
      rank_state_->lost.store(true);
    }
    if (rank_state_->lost.load()) {
      throw PeerLost(describe(call, rank()) + ": this rank was lost (injected)",
                     place_of(call, rank()));
    }
  }
  if (faults.max_delay_seconds > 0.0) {
    const RandomStream stream(faults.seed, "comm.threads.delay", static_cast<uint64_t>(rank()));
    std::this_thread::sleep_for(std::chrono::duration<double>(
        faults.max_delay_seconds * stream.uniform(static_cast<uint64_t>(count))));
  }
}

void ThreadCommunicator::await(Task& task) {
  const Call& call = *task.call;
  const Alarm& alarm = hub_->alarm;
  const SteadyTime deadline = hub_->clock.deadline_after(call.deadline_seconds);
  for (Ticket& ticket : task.after) {
    const auto own = std::dynamic_pointer_cast<Task>(ticket.state());
    if (own && !own->done()) row_.hold(row_lane_, own->owner->meeting_->number);
    const bool done =
        own ? own->owner->done_signal_->wait([&] { return own->done() || alarm.rung(); },
                                             hub_->clock, deadline) &&
                  own->done()
            : poll(ticket, *hub_, deadline);
    if (!done && alarm.rung()) alarm.raise_for(call, rank());
    if (!done)
      raise(timeout(call, rank(), {}, evidence(hub_->rows, call.deadline_seconds),
                    {rank(), meeting_->number, -1, {}}));
    try {
      ticket.wait();
    } catch (...) {
      if (own)
        row_.hold(row_lane_, own->owner->meeting_->number);  // the cause is to be found there
      raise(current_failure(), describe(call, rank()) + " waits for: ");
    }
  }
  if (task.ready && !poll(*task.ready, *hub_, deadline)) {
    if (alarm.rung()) alarm.raise_for(call, rank());
    raise(timeout(call, rank(), {rank()}, evidence(hub_->rows, call.deadline_seconds),
                  {rank(), meeting_->number, -1, {}}));
  }
  if (!task.after.empty()) row_.hold(row_lane_, 0);
  task.after.clear();
}

void ThreadCommunicator::refuse(Task& task, const Failure& failure) {
  const Call& call = *task.call;
  if (size() == 1) return;
  if (call.operation == Operation::kReceive)
    meeting_->mailbox.refuse(call.peer, position_, failure);
  else if (call.operation == Operation::kSend)
    meeting_->mailbox.post_refused(position_, call.peer, failure);
  else
    refuse_round(meeting_->rounds, task.round, failure);
}

void ThreadCommunicator::execute(const std::shared_ptr<Task>& task) {
  const Call& call = *task->call;
  if (size() == 1) {
    run_alone(call);
    if (task->ready) mover_.settle(call.destination);  // the caller's own work is in another queue
    return;
  }
  row_.join(row_lane_);
  if (call.operation == Operation::kSend) return post_send(task);
  const auto own_queue = mover_.begin();
  if (call.operation == Operation::kReceive)
    return meeting_->mailbox.receive(position_, call, mover_);
  const SentBytes sent = run_round(meeting_->rounds, task->round, position_, task->call, mover_);
  for (size_t level = 0; level < sent.size(); ++level)
    count_sent(call, static_cast<int64_t>(level), sent[level]);
}

/// Every operation of a world of one is at most a copy: the one part is the whole.
void ThreadCommunicator::run_alone(const Call& call) {
  if (call.operation == Operation::kBarrier || call.counts[0] == 0 || !call.destination) return;
  if (call.accumulate)
    mover_.sum(call.dtype, {call.source}, call.destination, call.counts[0], true);
  else
    mover_.copy(call.source, call.destination, call.counts[0] * dtype_bytes(call.dtype));
}

void ThreadCommunicator::post_send(const std::shared_ptr<Task>& task) {
  const Call& call = *task->call;
  const int64_t level = meeting_->rounds.level_between(position_, call.peer);
  auto parcel = std::make_shared<Parcel>();
  parcel->call = task->call;
  parcel->deadline = hub_->clock.deadline_after(call.deadline_seconds);
  parcel->complete = [task, level](int64_t bytes, const std::optional<Failure>& failure) {
    task->owner->count_sent(*task->call, level, bytes);
    task->complete(failure);
  };
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(sends_, [](const Outstanding& send) { return send.task->done(); });
    sends_.push_back({task, parcel});
  }
  meeting_->mailbox.post(position_, call.peer, parcel);
  sends_changed_.store(true);
  work_signal_->notify();
}

void ThreadCommunicator::work() {
  bool alarmed = false;
  const Alarm& alarm = hub_->alarm;
  while (!stopping_.load()) {
    if (run_next()) continue;
    const SteadyTime expiry = next_expiry();
    const auto woken = [&] {
      return stopping_.load() || may_run() || sends_changed_.load() || (alarm.rung() && !alarmed);
    };
    work_signal_->wait(woken, hub_->clock, expiry);
    alarmed = alarm.rung();
    expire_sends();
  }
  while (queued_.load() > 0)
    if (!run_next()) std::this_thread::yield();
  expire_sends();
}

SteadyTime ThreadCommunicator::next_expiry() {
  sends_changed_.store(false);
  const std::lock_guard<std::mutex> lock(mutex_);
  SteadyTime earliest = SteadyTime::max();
  for (const Outstanding& send : sends_)
    if (!send.task->done()) earliest = std::min(earliest, send.parcel->deadline);
  return earliest;
}

/// Gives up sends that nobody took by their deadline, or all of them after an alarm.
void ThreadCommunicator::expire_sends() {
  std::vector<Outstanding> late;
  const SteadyTime now = hub_->clock.now();
  const bool alarm = hub_->alarm.rung();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(sends_, [](const Outstanding& send) { return send.task->done(); });
    for (const Outstanding& send : sends_)
      if (alarm || send.parcel->deadline <= now) late.push_back(send);
  }
  for (const Outstanding& send : late) {
    const Call& call = *send.task->call;
    const int64_t peer = meeting_->rounds.members()[call.peer];
    try {
      if (alarm) hub_->alarm.raise_for(call, rank());
      const trace::Wait wait{rank(), meeting_->number, peer, {call.label, call.step, -1}};
      raise(timeout(call, rank(), {peer}, evidence(hub_->rows, call.deadline_seconds), wait));
    } catch (...) {
      meeting_->mailbox.withdraw(position_, call.peer, send.parcel, current_failure());
    }
  }
}

void ThreadCommunicator::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
  }
  work_signal_->notify();
  if (worker_.joinable()) worker_.join();
  const std::lock_guard<std::mutex> lock(mutex_);
  sends_.clear();  // their tasks own this communicator
}

void ThreadCommunicator::count_sent(const Call& call, int64_t level, int64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard<std::mutex> lock(ledger_mutex_);
  add_to_ledger(call, level, bytes, ledger_);
}

void ThreadCommunicator::drain_ledger(Ledger& ledger) {
  const std::lock_guard<std::mutex> lock(ledger_mutex_);
  ledger.merge(ledger_);
  ledger_.clear();
}

}  // namespace strait::comm
