#include "strait/collective/schedule.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "strait/base/errors.h"

namespace strait::collective {

const char* operation_name(Operation operation) {
  switch (operation) {
    case Operation::kAllGather:
      return "all-gather";
    case Operation::kReduceScatter:
      return "reduce-scatter";
    case Operation::kAllReduce:
      return "all-reduce";
    case Operation::kAllToAll:
      return "all-to-all";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kSend:
      return "send";
    case Operation::kReceive:
      return "receive";
    case Operation::kBarrier:
      return "barrier";
  }
  return "?";
}

const char* algorithm_name(Algorithm algorithm) {
  return algorithm == Algorithm::kDirect ? "direct" : "ring";
}

int64_t latency_steps(Operation operation, Algorithm algorithm, int64_t members) {
  if (members <= 1) return 0;
  const int64_t phase = algorithm == Algorithm::kRing ? members - 1 : 1;
  return operation == Operation::kAllReduce ? 2 * phase : phase;
}

std::vector<int64_t> even_counts(int64_t elements, int64_t members) {
  const int64_t grain = (elements + members - 1) / members;
  std::vector<int64_t> counts(members);
  for (int64_t part = 0; part < members; ++part)
    counts[part] = std::clamp<int64_t>(elements - part * grain, 0, grain);
  return counts;
}

namespace {

bool has_ring(Operation operation) {
  return operation == Operation::kAllGather || operation == Operation::kReduceScatter ||
         operation == Operation::kAllReduce;
}

size_t wanted_counts(const Request& request) {
  switch (request.operation) {
    case Operation::kAllToAll:
      return static_cast<size_t>(request.members * request.members);
    case Operation::kBroadcast:
    case Operation::kSend:
    case Operation::kReceive:
      return 1;
    case Operation::kBarrier:
      return 0;
    default:
      return static_cast<size_t>(request.members);
  }
}

/// Collects the pulls of one member; leaves out empty ones.
class Pulls {
 public:
  Pulls(const Request& request, int64_t position)
      : counts_(request.counts), members_(request.members), me_(position) {
    offsets_.assign(counts_.size() + 1, 0);
    std::partial_sum(counts_.begin(), counts_.end(), offsets_.begin() + 1);
  }

  void add(const Transfer& transfer) {
    if (transfer.elements > 0) transfers_.push_back(transfer);
  }

  /// Part p of every source, in member order, to `offset` of the destination.
  void direct_reduce(int64_t destination_offset) {
    for (int64_t from = 0; from < members_; ++from)
      add({0, from, me_, from > 0, Place::kSource, offsets_[me_], Place::kDestination,
           destination_offset, counts_[me_]});
  }

  /// Every part from its owner: whole sources, or (after a reduction) the owner's destination.
  void direct_gather(int64_t step, bool after_reduction) {
    for (int64_t distance = 0; distance < members_; ++distance) {
      const int64_t part =
          (me_ + distance) % members_;  // staggered: no owner is pulled from by all at once
      if (after_reduction && part == me_) continue;
      add({step, part, me_, false, after_reduction ? Place::kDestination : Place::kSource,
           after_reduction ? offsets_[part] : 0, Place::kDestination, offsets_[part],
           counts_[part]});
    }
  }

  /// Part p starts at member p + 1, grows around the ring and ends, complete, at member p.
  void ring_reduce(int64_t destination_offset) {
    const int64_t left = (me_ + members_ - 1) % members_;
    if (members_ == 1) return direct_reduce(destination_offset);
    for (int64_t step = 0; step < members_ - 1; ++step) {
      const int64_t part = (me_ + 2 * members_ - 2 - step) % members_;
      const bool last = step == members_ - 2;
      const Place place = last ? Place::kDestination : Place::kScratch;
      const int64_t offset = last ? destination_offset : offsets_[part];
      add({step, left, me_, false, step == 0 ? Place::kSource : Place::kScratch, offsets_[part],
           place, offset, counts_[part]});
      add({step, me_, me_, true, Place::kSource, offsets_[part], place, offset, counts_[part]});
    }
  }

  /// In step s the part that the left neighbour received in step s - 1; its own one first.
  void ring_gather(int64_t first_step, bool after_reduction) {
    const int64_t left = (me_ + members_ - 1) % members_;
    if (!after_reduction)
      add({first_step, me_, me_, false, Place::kSource, 0, Place::kDestination, offsets_[me_],
           counts_[me_]});
    for (int64_t step = 0; step < members_ - 1; ++step) {
      const int64_t part = (me_ + members_ - 1 - step) % members_;
      const bool from_source = step == 0 && !after_reduction;
      add({first_step + step, left, me_, false, from_source ? Place::kSource : Place::kDestination,
           from_source ? 0 : offsets_[part], Place::kDestination, offsets_[part], counts_[part]});
    }
  }

  void all_to_all() {
    std::vector<int64_t> received(members_ + 1, 0);
    for (int64_t from = 0; from < members_; ++from)
      received[from + 1] = received[from] + counts_[from * members_ + me_];
    for (int64_t distance = 0; distance < members_; ++distance) {
      const int64_t from = (me_ + distance) % members_;
      const int64_t cell = from * members_ + me_;
      add({0, from, me_, false, Place::kSource, offsets_[cell] - offsets_[from * members_],
           Place::kDestination, received[from], counts_[cell]});
    }
  }

  int64_t offset() const { return offsets_[me_]; }
  std::vector<Transfer> take() { return std::move(transfers_); }

 private:
  const std::vector<int64_t>& counts_;
  int64_t members_;
  int64_t me_;
  std::vector<int64_t> offsets_;
  std::vector<Transfer> transfers_;
};

}  // namespace

void check_request(const Request& request) {
  const std::string name = operation_name(request.operation);
  if (request.members < 1) throw UserError(name + ": a group needs at least one member");
  if (request.algorithm == Algorithm::kRing && !has_ring(request.operation))
    throw UserError(name + ": no ring form; the valid algorithm is direct");
  if (request.counts.size() != wanted_counts(request))
    throw UserError(name + " among " + std::to_string(request.members) + " members: expected " +
                    std::to_string(wanted_counts(request)) + " counts, got " +
                    std::to_string(request.counts.size()));
  for (size_t part = 0; part < request.counts.size(); ++part)
    if (request.counts[part] < 0)
      throw UserError(name + ": count of part " + std::to_string(part) + " is " +
                      std::to_string(request.counts[part]) + "; the smallest valid one is 0");
  for (const int64_t position : {request.root, request.receiver})
    if (position < 0 || position >= request.members)
      throw UserError(name + ": position " + std::to_string(position) + " is not in 0.." +
                      std::to_string(request.members - 1));
  const bool pair =
      request.operation == Operation::kSend || request.operation == Operation::kReceive;
  if (pair && request.root == request.receiver)
    throw UserError(name + ": member " + std::to_string(request.root) +
                    " is both sides; name another member as peer");
}

std::vector<Transfer> transfers_to(const Request& request, int64_t position) {
  Pulls pulls(request, position);
  const bool ring = request.algorithm == Algorithm::kRing;
  const int64_t reduce_steps = ring ? std::max<int64_t>(request.members - 1, 1) : 1;
  switch (request.operation) {
    case Operation::kAllGather:
      ring ? pulls.ring_gather(0, false) : pulls.direct_gather(0, false);
      break;
    case Operation::kReduceScatter:
      ring ? pulls.ring_reduce(0) : pulls.direct_reduce(0);
      break;
    case Operation::kAllReduce:
      ring ? pulls.ring_reduce(pulls.offset()) : pulls.direct_reduce(pulls.offset());
      ring ? pulls.ring_gather(reduce_steps, true) : pulls.direct_gather(reduce_steps, true);
      break;
    case Operation::kAllToAll:
      pulls.all_to_all();
      break;
    case Operation::kBroadcast:
      pulls.add({0, request.root, position, false, Place::kSource, 0, Place::kDestination, 0,
                 request.counts[0]});
      break;
    case Operation::kSend:
    case Operation::kReceive:
      if (position == request.receiver)
        pulls.add({0, request.root, position, false, Place::kSource, 0, Place::kDestination, 0,
                   request.counts[0]});
      break;
    case Operation::kBarrier:
      break;
  }
  return pulls.take();
}

Schedule make_schedule(const Request& request) {
  check_request(request);
  Schedule schedule{request, 0, {}};
  for (int64_t position = 0; position < request.members; ++position) {
    const std::vector<Transfer> own = transfers_to(request, position);
    schedule.transfers.insert(schedule.transfers.end(), own.begin(), own.end());
    for (const Transfer& transfer : own)
      schedule.steps = std::max(schedule.steps, transfer.step + 1);
  }
  return schedule;
}

}  // namespace strait::collective
