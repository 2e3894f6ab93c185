#include "strait/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "strait/comm/call_check.h"
#include "strait/comm/wait_table.h"

namespace strait::comm {

using collective::Place;
using collective::Transfer;

struct NcclCommunicator::Step {
  std::vector<Transfer> sends;     // from this member to others
  std::vector<Transfer> receives;  // to this member, its own copies included, in order
};

namespace {

constexpr double kSpinSeconds = 20e-6;

bool same_target(const Transfer& a, const Transfer& b) {
  return b.add && a.destination == b.destination && a.destination_offset == b.destination_offset;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const Site& place, const std::vector<int64_t>& members,
                                   int64_t lane)
    : place_(place),
      members_(members),
      number_(communicator_number(members, lane)),
      control_(place.control.communicator(members, lane)),
      own_(place.device.make_queue()),
      link_(place.control.rank()),
      queue_(std::make_shared<CallQueue>(static_cast<CallRunner&>(*this), kSpinSeconds)) {}

NcclCommunicator::~NcclCommunicator() {
  queue_->stop();
  for (const Buffer& buffer : {staged_, partial_, landing_})
    if (buffer.data) place_.device.release(buffer.data);
}

void NcclCommunicator::Ready::wait() {
  while (!mark->done()) std::this_thread::yield();
}

/// Scalars of the run around the programs, and barriers, lie in host memory.
bool NcclCommunicator::for_control(const Call& call) const {
  if (call.operation == Operation::kBarrier) return true;
  const auto plain = [&](const void* at) { return at != nullptr && !place_.device.holds(at); };
  return plain(call.source) || plain(call.destination);
}

Ticket NcclCommunicator::start(const Call& call, const std::vector<Ticket>& after) {
  check_call(call, position(), size(), rank());
  if (for_control(call)) return control_.start(call, after);
  if (size() == 1) {  // in the caller's own order of work
    for (Ticket ticket : after) ticket.wait();
    execute_alone(call);
    return {};
  }
  std::vector<Ticket> awaited = after;
  awaited.emplace_back(std::make_shared<Ready>(place_.device.mark()));
  return queue_->push(call, awaited);
}

void NcclCommunicator::execute_alone(const Call& call) const {
  if (call.counts[0] == 0 || !call.destination) return;
  if (call.accumulate)
    tensor::sum_in_order(place_.device,
                         {call.dtype, {call.source}, call.destination, call.counts[0], true});
  else
    tensor::copy_bytes(&place_.device, call.source, call.destination,
                       call.counts[0] * dtype_bytes(call.dtype));
}

void NcclCommunicator::run(const std::shared_ptr<QueuedCall>& queued) {
  try {
    const SteadyTime deadline = deadline_after(queued->call.deadline_seconds);
    await(*queued, deadline);
    queued->begin();
    const auto entered = place_.device.enter(*own_);
    if (!link_.joined()) link_.join(control_, queued->call);
    execute(queued->call, deadline_after(queued->call.deadline_seconds));
    queued->complete(std::nullopt);
  } catch (...) {
    const Failure failure = current_failure();
    place_.control.abort(failure.message, failure.place);
    queued->complete(failure);
  }
}

void NcclCommunicator::await(QueuedCall& queued, SteadyTime deadline) const {
  for (Ticket& ticket : queued.after) {
    while (!ticket.done()) {
      if (std::chrono::steady_clock::now() > deadline)
        raise(timeout(queued.call, rank(), {}, {}, {rank(), number_, -1, {}}));
      std::this_thread::sleep_for(std::chrono::microseconds(10));
    }
    ticket.wait();
  }
  queued.after.clear();
}

char* NcclCommunicator::grow(Buffer& buffer, int64_t bytes) {
  if (buffer.bytes < bytes) {
    if (buffer.data) place_.device.release(buffer.data);
    buffer = {};
    buffer.data = place_.device.allocate(bytes);
    buffer.bytes = bytes;
  }
  return static_cast<char*>(buffer.data);
}

char* NcclCommunicator::address(const Call& call, const CallForm& form, Place place,
                                int64_t offset) {
  const int64_t bytes = offset * dtype_bytes(call.dtype);
  if (place == Place::kScratch) return grow(partial_, form.whole_bytes) + bytes;
  if (place == Place::kSource) return static_cast<char*>(const_cast<void*>(call.source)) + bytes;
  char* const base =
      form.staged ? grow(staged_, form.whole_bytes) : static_cast<char*>(call.destination);
  return base ? base + bytes : nullptr;
}

void NcclCommunicator::count(const Call& call, int64_t peer, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(ledger_mutex_);
  add_to_ledger(call, place_.cluster.level_between(rank(), members_[peer]), bytes, ledger_);
}

/// All-to-all: what the others send to this member is known from its own receive_counts, and no
/// more is asked of the schedule than its row and its column.
void NcclCommunicator::execute(const Call& call, SteadyTime deadline) {
  const CallForm form = form_of(call, members_, place_.cluster);
  collective::Request request = form.request;
  const int64_t me = position(), n = size();
  if (call.operation == Operation::kAllToAll) {
    std::vector<int64_t> counts(static_cast<size_t>(n * n), 0);
    for (int64_t other = 0; other < n; ++other) {
      counts[me * n + other] = call.counts[other];
      counts[other * n + me] = call.receive_counts[other];
    }
    request.counts = counts;
  }
  std::vector<Step> steps;
  const auto step_of = [&](int64_t step) -> Step& {
    if (static_cast<int64_t>(steps.size()) <= step) steps.resize(static_cast<size_t>(step + 1));
    return steps[static_cast<size_t>(step)];
  };
  for (const Transfer& transfer : collective::transfers_to(request, me))
    step_of(transfer.step).receives.push_back(transfer);
  for (const Transfer& transfer : collective::transfers_from(request, me))
    if (transfer.to != me) step_of(transfer.step).sends.push_back(transfer);
  for (const Step& step : steps) run_step(step, call, form, deadline);
  if (form.staged && call.destination)
    tensor::sum_in_order(place_.device, {call.dtype,
                                         {staged_.data},
                                         call.destination,
                                         form.whole_bytes / dtype_bytes(call.dtype),
                                         true});
  link_.await(*place_.device.mark(), call, deadline);
}

/// All-to-all reads the source of another member at an offset that only that one knows; it sends
/// from there, so a receiver needs its own addresses alone.
void NcclCommunicator::run_step(const Step& step, const Call& call, const CallForm& form,
                                SteadyTime deadline) {
  const int64_t me = position(), element = dtype_bytes(call.dtype);
  int64_t landing_bytes = 0;
  for (const Transfer& transfer : step.receives) landing_bytes += transfer.elements * element;
  std::vector<NcclPiece> sends, receives;
  for (const Transfer& transfer : step.sends) {
    const int64_t bytes = transfer.elements * element;
    sends.push_back(
        {transfer.to, address(call, form, transfer.source, transfer.source_offset), bytes});
    count(call, transfer.to, bytes);
  }
  // Everything lands beside its target: a target may be what is still being sent.
  char* landing = grow(landing_, landing_bytes);
  std::vector<const void*> brought;
  for (const Transfer& transfer : step.receives) {
    const int64_t bytes = transfer.elements * element;
    if (transfer.from == me) {
      brought.push_back(address(call, form, transfer.source, transfer.source_offset));
      continue;
    }
    receives.push_back({transfer.from, landing, bytes});
    brought.push_back(landing);
    landing += bytes;
  }
  link_.exchange(sends, receives, call, deadline);
  for (size_t begin = 0, end = 0; begin < step.receives.size(); begin = end) {
    const Transfer& first = step.receives[begin];
    for (end = begin + 1; end < step.receives.size() && same_target(first, step.receives[end]);)
      ++end;
    char* const target = address(call, form, first.destination, first.destination_offset);
    if (!target) continue;  // a root that needs no copy
    const bool accumulate =
        call.accumulate && !form.staged && first.destination == Place::kDestination;
    if (end == begin + 1 && !accumulate)
      tensor::copy_bytes(&place_.device, brought[begin], target, first.elements * element);
    else
      tensor::sum_in_order(place_.device, {call.dtype,
                                           {brought.begin() + static_cast<std::ptrdiff_t>(begin),
                                            brought.begin() + static_cast<std::ptrdiff_t>(end)},
                                           target,
                                           first.elements,
                                           accumulate});
  }
}

void NcclCommunicator::drain_ledger(Ledger& ledger) {
  control_.drain_ledger(ledger);
  const std::lock_guard<std::mutex> lock(ledger_mutex_);
  ledger.merge(ledger_);
  ledger_.clear();
}

}  // namespace strait::comm
