#include "strait/comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "strait/collective/unasked.h"
#include "strait/comm/call_check.h"
#include "strait/comm/mpi/pieces.h"
#include "strait/comm/sums.h"

namespace strait::comm {
namespace {

constexpr double kSendLook = 200e-6;  // between looks at a send that nobody has taken yet
constexpr double kAlarmLook = 0.05;   // between looks at the alarm

/// Of a message to or from `other`.
int64_t piece_bytes(const MpiSite& site, int64_t bytes, int64_t other) {
  const bool unasked = site.place(other) < 0 && bytes <= collective::kMostUnaskedBytes;
  return unasked ? kPieceBytes : Messages::kWhole;
}

}  // namespace

MpiCommunicator::MpiCommunicator(MpiSite& site, const std::vector<int64_t>& members, int64_t lane)
    : site_(site),
      number_(communicator_number(members, lane)),
      exchange_(site, members, number_),
      row_(site.row()),
      row_lane_(site.cluster.ranks == 1 ? -1 : row_.open(number_, members)),
      queue_(std::make_shared<CallQueue>(static_cast<CallRunner&>(*this), site.spin_seconds)) {}

MpiCommunicator::~MpiCommunicator() { stop(); }

void MpiCommunicator::stop() {
  queue_->stop();
  for (Outstanding& send : sends_) {
    site_.messages.cancel(send.message);
    send.call->complete(Failure{Failure::Kind::kPeerLost,
                                describe(send.call->call, site_.rank()) + ": the world ended first",
                                place_of(send.call->call, peer_rank(send.call->call))});
  }
  sends_.clear();
}

Ticket MpiCommunicator::start(const Call& call, const std::vector<Ticket>& after) {
  check_call(call, position(), size(), site_.rank());
  if (!is_pairwise(call.operation)) row_.issue(row_lane_);
  return queue_->push(call, after);
}

void MpiCommunicator::run(const Call& call) {
  check_call(call, position(), size(), site_.rank());
  if (!is_pairwise(call.operation)) row_.issue(row_lane_);
  queue_->run_inline(call);
}

void MpiCommunicator::waiting(const QueuedCall& queued) {
  if (row_lane_ < 0) return;
  if (queued.call.operation == Operation::kSend)
    row_.waits_for_peer(number_, peer_rank(queued.call), queued.call.label, queued.call.step);
  else
    row_.waits(number_);
}

void MpiCommunicator::waited(const QueuedCall& queued) {
  if (row_lane_ >= 0) row_.busy("between operations", queued.call.step, -1);
}

void MpiCommunicator::run(const std::shared_ptr<QueuedCall>& queued) {
  try {
    prepare(*queued);
    queued->begin();
    execute(queued);
    row_.end(row_lane_);
    if (queued->call.operation != Operation::kSend) queued->complete(std::nullopt);
  } catch (...) {
    fail(*queued, current_failure());
  }
}

void MpiCommunicator::fail(QueuedCall& queued, Failure failure) {
  if (!site_.board.ring(site_.rank(), failure.message, failure.place, cause_of(failure)) &&
      site_.rung() && failure.kind == Failure::Kind::kTimeout) {
    // Another one gave up at the same moment: all name what that one found.
    try {
      site_.raise_alarm(queued.call);
    } catch (...) {
      failure = current_failure();
    }
  }
  queued.complete(std::move(failure));
}

void MpiCommunicator::prepare(QueuedCall& queued) {
  const Call& call = queued.call;
  if (row_lane_ >= 0 && !site_.rung()) {
    const bool pairwise = is_pairwise(call.operation);
    row_.call(row_lane_, {pairwise ? begun_ : queued.number, operation_name(call.operation),
                          call.label, call.step, pairwise ? peer_rank(call) : -1});
    if (!pairwise) begun_ = queued.number + 1;
  }
  await(queued);
  if (site_.at_turn) site_.at_turn(call);
  if (site_.rung()) site_.raise_alarm(call);
}

/// The tickets that this call waits for. They may depend on sends of this communicator, which
/// nobody else looks at meanwhile.
void MpiCommunicator::await(QueuedCall& queued) {
  if (queued.after.empty()) return;
  const Call& call = queued.call;
  const SteadyTime deadline = site_.clock.deadline_after(call.deadline_seconds);
  for (Ticket& ticket : queued.after) {
    const auto own = std::dynamic_pointer_cast<QueuedCall>(ticket.state());
    if (own && !own->done()) row_.hold(row_lane_, own->communicator());
    for (int64_t turn = 0; !ticket.done(); ++turn) {
      if (site_.rung()) site_.raise_alarm(call);
      if (site_.clock.now() > deadline)
        raise(timeout(call, site_.rank(), {}, site_.standings(call.deadline_seconds),
                      {site_.rank(), number_, -1, {}}));
      const auto ready = [&] { return ticket.done() || site_.rung(); };
      const SteadyTime look = std::min(tend(), deadline_after(kAlarmLook));
      if (own)
        own->queue()->done_signal().wait(ready, look);
      else if (turn < 100)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(std::min<int64_t>(turn, 500)));
    }
    try {
      ticket.wait();
    } catch (...) {
      if (own) row_.hold(row_lane_, own->communicator());  // the cause is to be found there
      raise(current_failure(), describe(call, site_.rank()) + " waits for: ");
    }
  }
  row_.hold(row_lane_, 0);
  queued.after.clear();
}

void MpiCommunicator::execute(const std::shared_ptr<QueuedCall>& queued) {
  const Call& call = queued->call;
  if (size() == 1) return run_alone(call);
  row_.beat(now_seconds());
  row_.join(row_lane_);
  if (call.operation == Operation::kSend) return send(queued);
  if (call.operation == Operation::kReceive) return receive(call);
  count(call, exchange_.run(call, queued->number));
}

void MpiCommunicator::run_alone(const Call& call) const {
  if (call.operation == Operation::kBarrier || call.counts[0] == 0 || !call.destination) return;
  if (call.accumulate)
    sum_in_order(call.dtype, {call.source}, call.destination, call.counts[0], true);
  else
    copy_bytes(call.source, call.destination, call.counts[0] * dtype_bytes(call.dtype));
}

/// Does not hold up what this member does next.
void MpiCommunicator::send(const std::shared_ptr<QueuedCall>& queued) {
  const Call& call = queued->call;
  const int64_t bytes = call.counts[0] * dtype_bytes(call.dtype);
  const int64_t to = peer_rank(call);
  Outstanding send{queued,
                   site_.messages.send(call.source, bytes, to, exchange_.tag(true),
                                       piece_bytes(site_, bytes, to)),
                   site_.clock.deadline_after(call.deadline_seconds)};
  const int64_t handed = send.message.handed;
  SentBytes sent{std::vector<int64_t>(site_.cluster.levels.size(), 0)};
  sent.by_level[site_.cluster.level_between(site_.rank(), to)] = handed;
  if (site_.place(to) < 0) sent.network = handed;
  count(call, sent);
  if (site_.messages.test(send.message)) return queued->complete(std::nullopt);
  sends_.push_back(std::move(send));
}

void MpiCommunicator::receive(const Call& call) {
  const int64_t bytes = call.counts[0] * dtype_bytes(call.dtype);
  std::vector<char> landing(call.accumulate ? bytes : 0);
  void* target = call.accumulate ? landing.data() : call.destination;
  const int64_t from = peer_rank(call);
  Message message = site_.messages.receive(target, bytes, from, exchange_.tag(true),
                                           piece_bytes(site_, bytes, from));
  const auto done = [&] { return site_.messages.test(message); };
  try {
    if (!done())
      exchange_.wait_of(call).until([&] { return message.done; },
                                    [&] {
                                      tend();
                                      return !done();
                                    },
                                    [&] { return std::vector<int64_t>{peer_rank(call)}; });
  } catch (...) {
    stranded_.push_back(std::move(landing));  // MPI may still write there
    throw;
  }
  if (call.accumulate) sum_in_order(call.dtype, {target}, call.destination, call.counts[0], true);
}

SteadyTime MpiCommunicator::tend() {
  if (sends_.empty()) return SteadyTime::max();
  row_.beat(now_seconds());
  const SteadyTime now = site_.clock.now();
  for (Outstanding& send : sends_) {
    const Call& call = send.call->call;
    try {
      if (site_.messages.test(send.message)) {
        send.call->complete(std::nullopt);
        continue;
      }
      if (site_.rung()) site_.raise_alarm(call);
      if (now < send.deadline) continue;
      const trace::Wait wait{site_.rank(), number_, peer_rank(call), {call.label, call.step, -1}};
      raise(timeout(call, site_.rank(), {peer_rank(call)}, site_.standings(call.deadline_seconds),
                    wait));
    } catch (...) {
      site_.messages.cancel(send.message);
      fail(*send.call, current_failure());
    }
  }
  std::erase_if(sends_, [](const Outstanding& send) { return send.call->done(); });
  return sends_.empty() ? SteadyTime::max() : deadline_after(kSendLook);
}

void MpiCommunicator::count(const Call& call, const SentBytes& sent) {
  const std::lock_guard<std::mutex> lock(ledger_mutex_);
  ledger_.add_network(sent.network);
  for (size_t level = 0; level < sent.by_level.size(); ++level)
    if (const int64_t bytes = sent.by_level[level]; bytes > 0)
      add_to_ledger(call, static_cast<int64_t>(level), bytes, ledger_);
}

void MpiCommunicator::drain_ledger(Ledger& ledger) {
  const std::lock_guard<std::mutex> lock(ledger_mutex_);
  ledger.merge(ledger_);
  ledger_.clear();
}

}  // namespace strait::comm
