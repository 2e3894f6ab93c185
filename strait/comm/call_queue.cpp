#include "strait/comm/call_queue.h"

#include "strait/comm/call_check.h"
#include "strait/threads/cores.h"
#include "strait/threads/thread_limit.h"

namespace strait::comm {
namespace {

constexpr double kTendAgain = 200e-6;

}  // namespace

void QueuedCall::wait() {
  if (!done()) {
    queue_->runner_.waiting(*this);
    while (!done() && queue_->run_next()) {
    }
    queue_->done_.wait([this] { return done(); }, SteadyTime::max());
    if (!failure_) queue_->runner_.waited(*this);
  }
  if (failure_) raise(*failure_);
}

uint64_t QueuedCall::communicator() const { return queue_->runner_.number(); }

void QueuedCall::complete(std::optional<Failure> failure) {
  ended_ = now_seconds();
  call.flight.end(ended_, failure.has_value());
  failure_ = std::move(failure);
  done_.store(true, std::memory_order_release);
  queue_->done_.notify();
}

CallQueue::~CallQueue() {
  if (worker_.joinable())
    worker_.detach();  // only when stop() was never called: the process is ending
}

Ticket CallQueue::push(const Call& call, const std::vector<Ticket>& after) {
  const auto queued = std::make_shared<QueuedCall>(shared_from_this(), call, after);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_pairwise(call.operation)) queued->number = next_number_++;
    queue_.push_back(queued);
    queued_.fetch_add(1);
    need_worker();
  }
  wake_.notify();
  return Ticket(queued);
}

void CallQueue::run_inline(const Call& call) {
  std::shared_ptr<QueuedCall> queued;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty() && take_turn()) {
      queued = std::make_shared<QueuedCall>(shared_from_this(), call, std::vector<Ticket>{});
      if (!is_pairwise(call.operation)) queued->number = next_number_++;
    }
  }
  if (!queued) return push(call, {}).wait();
  run(queued);
  queued->wait();
}

bool CallQueue::run_next() {
  std::shared_ptr<QueuedCall> call;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty() || !take_turn()) return false;
    call = std::move(queue_.front());
    queue_.pop_front();
    queued_.fetch_sub(1);
  }
  run(call);
  return true;
}

/// Precondition: this thread has set running_.
void CallQueue::run(const std::shared_ptr<QueuedCall>& call) {
  runner_.run(call);
  const bool left = !call->done();
  if (left) {  // the worker tends to it
    nudged_.store(true);
    const std::lock_guard<std::mutex> lock(mutex_);
    need_worker();
  }
  running_.store(false);
  if (left || queued_.load() > 0) wake_.notify();
}

/// Precondition: mutex_ is held.
void CallQueue::need_worker() {
  if (!worker_.joinable() && !stopping_.load())
    worker_ = start_thread("transfers", [this, cores = cores_before_binding()] {
      run_on(cores);
      take_short_turns();
      work();
    });
}

void CallQueue::nudge() {
  nudged_.store(true);
  wake_.notify();
  done_.notify();
}

void CallQueue::work() {
  SteadyTime next = SteadyTime::max();
  while (!stopping_.load()) {
    if (run_next()) continue;
    wake_.wait([&] { return stopping_.load() || may_run() || nudged_.load(); }, next);
    nudged_.store(false);
    if (!take_turn()) {
      next = deadline_after(kTendAgain);  // another thread runs a call: what is left waits for it
      continue;
    }
    next = runner_.tend();
    running_.store(false);
  }
  while (queued_.load() > 0)
    if (!run_next()) std::this_thread::yield();
}

void CallQueue::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify();
  if (worker_.joinable()) worker_.join();
}

}  // namespace strait::comm
