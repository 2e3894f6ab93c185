#include "strait/collective/schedule.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "strait/base/errors.h"
#include "strait/collective/nesting.h"

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
    case Operation::kShift:
      return "shift";
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
  switch (algorithm) {
    case Algorithm::kDirect:
      return "direct";
    case Algorithm::kRing:
      return "ring";
    case Algorithm::kRecursive:
      return "recursive";
    case Algorithm::kHierarchical:
      return "hierarchical";
  }
  return "?";
}

bool is_power_of_two(int64_t members) { return members > 0 && (members & (members - 1)) == 0; }

bool has_form(Operation operation, Algorithm algorithm) {
  if (algorithm == Algorithm::kDirect) return true;
  if (operation == Operation::kBroadcast) return algorithm == Algorithm::kHierarchical;
  return operation == Operation::kAllGather || operation == Operation::kReduceScatter ||
         operation == Operation::kAllReduce;
}

namespace {

/// Steps of a gather, or of a reduction.
int64_t phase_steps(Algorithm algorithm, int64_t members, int64_t levels) {
  if (members == 1) return 1;
  switch (algorithm) {
    case Algorithm::kRing:
      return members - 1;
    case Algorithm::kRecursive:
      return std::bit_width(static_cast<uint64_t>(members)) - 1;
    case Algorithm::kHierarchical:
      return levels;
    case Algorithm::kDirect:
      break;
  }
  return 1;
}

}  // namespace

int64_t latency_steps(Operation operation, Algorithm algorithm, int64_t members, int64_t levels,
                      int64_t pieces) {
  if (members <= 1) return 0;
  const int64_t phase = phase_steps(algorithm, members, levels);
  return (operation == Operation::kAllReduce ? 2 * phase : phase) + pieces - 1;
}

std::vector<int64_t> even_counts(int64_t elements, int64_t members) {
  const int64_t grain = (elements + members - 1) / members;
  std::vector<int64_t> counts(members);
  for (int64_t part = 0; part < members; ++part)
    counts[part] = std::clamp<int64_t>(elements - part * grain, 0, grain);
  return counts;
}

namespace {

constexpr int64_t kLineElements = 64;  // what pieces are cut at multiples of: whole cache lines

/// All-to-all: every sender sends alike.
bool one_row(int64_t members, const std::vector<int64_t>& counts) {
  return static_cast<int64_t>(counts.size()) == members;
}

size_t wanted_counts(const Request& request) {
  switch (request.operation) {
    case Operation::kAllToAll:
      return static_cast<size_t>(one_row(request.members, request.counts)
                                     ? request.members
                                     : request.members * request.members);
    case Operation::kShift:
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

  /// Step s doubles the block of parts that a member holds, by its partner's block.
  void recursive_gather(int64_t first_step, bool after_reduction) {
    if (!after_reduction)
      add({first_step, me_, me_, false, Place::kSource, 0, Place::kDestination, offsets_[me_],
           counts_[me_]});
    int64_t step = first_step;
    for (int64_t block = 1; block < members_; block *= 2, ++step) {
      const int64_t partner = me_ ^ block, begin = partner / block * block;
      const bool from_source = block == 1 && !after_reduction;
      add({step, partner, me_, false, from_source ? Place::kSource : Place::kDestination,
           from_source ? 0 : offsets_[begin], Place::kDestination, offsets_[begin],
           offsets_[begin + block] - offsets_[begin]});
    }
  }

  /// Step s halves the block of parts whose partial sums a member keeps: its own and its partner's.
  void recursive_reduce(int64_t destination_offset) {
    if (members_ == 1) return direct_reduce(destination_offset);
    int64_t step = 0;
    for (int64_t block = members_ / 2; block >= 1; block /= 2, ++step) {
      const int64_t partner = me_ ^ block, begin = me_ / block * block;
      const Place from = step == 0 ? Place::kSource : Place::kScratch;
      const Place to = block == 1 ? Place::kDestination : Place::kScratch;
      const int64_t offset = block == 1 ? destination_offset : offsets_[begin];
      const int64_t elements = offsets_[begin + block] - offsets_[begin];
      for (const int64_t member : {std::min(me_, partner), std::max(me_, partner)})
        add({step, member, me_, member > std::min(me_, partner), from, offsets_[begin], to, offset,
             elements});
    }
  }

  /// Parts come down from the groups that hold them; what other members hold in their sources
  /// first.
  void nested_gather(const Nesting& nesting, int64_t first_step, bool after_reduction) {
    for (int64_t distance = 0; distance < members_; ++distance) {
      const int64_t part = (me_ + distance) % members_;
      if (after_reduction && part == me_) continue;
      const Nesting::Parent parent = nesting.parent(part, me_);
      const bool owner = parent.member == part;
      const bool from_source = owner && !after_reduction;
      add({first_step + (owner ? 0 : nesting.levels() - 1 - parent.level), parent.member, me_,
           false, from_source ? Place::kSource : Place::kDestination,
           from_source ? 0 : offsets_[part], Place::kDestination, offsets_[part], counts_[part]});
    }
    sort_by_step(first_step);
  }

  /// Partial sums go up: over the members of the innermost group, then over the groups inside the
  /// next.
  void nested_reduce(const Nesting& nesting, int64_t destination_offset) {
    for (int64_t level = 0; level < nesting.levels(); ++level) {
      for (int64_t part = 0; part < members_; ++part) {
        if (nesting.holder(part, me_, level) != me_) continue;
        const bool last = level + 1 == nesting.levels();
        bool first = true;
        for (const int64_t from : nesting.children(part, me_, level)) {
          add({level, from, me_, !first, level == 0 ? Place::kSource : Place::kScratch,
               offsets_[part], last ? Place::kDestination : Place::kScratch,
               last ? destination_offset : offsets_[part], counts_[part]});
          first = false;
        }
      }
    }
  }

  void nested_broadcast(const Nesting& nesting, int64_t root) {
    const Nesting::Parent parent = nesting.parent(root, me_);
    const bool from_root = parent.member == root;
    add({from_root ? 0 : nesting.levels() - 1 - parent.level, parent.member, me_, false,
         from_root ? Place::kSource : Place::kDestination, 0, Place::kDestination, 0, counts_[0]});
  }

  void all_to_all() {
    const int64_t row = one_row(members_, counts_) ? 0 : members_;  // from sender to sender
    std::vector<int64_t> received(members_ + 1, 0);
    for (int64_t from = 0; from < members_; ++from)
      received[from + 1] = received[from] + counts_[from * row + me_];
    for (int64_t distance = 0; distance < members_; ++distance) {
      const int64_t from = (me_ + distance) % members_;
      const int64_t cell = from * row + me_;
      add({0, from, me_, false, Place::kSource, offsets_[cell] - offsets_[from * row],
           Place::kDestination, received[from], counts_[cell]});
    }
  }

  void shift(int64_t skipped) {
    add({0, (me_ + 2 * members_ - 1 - skipped) % members_, me_, false, Place::kSource, 0,
         Place::kDestination, 0, counts_[0]});
  }

  int64_t offset() const { return offsets_[me_]; }
  std::vector<Transfer> take() { return std::move(transfers_); }

 private:
  void sort_by_step(int64_t first_step) {
    const auto begin =
        std::find_if(transfers_.begin(), transfers_.end(),
                     [&](const Transfer& transfer) { return transfer.step >= first_step; });
    std::stable_sort(begin, transfers_.end(), [](const Transfer& left, const Transfer& right) {
      return left.step < right.step;
    });
  }

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
  if (!has_form(request.operation, request.algorithm))
    throw UserError(name + ": no " + algorithm_name(request.algorithm) +
                    " form; the valid algorithm is direct");
  if (request.algorithm == Algorithm::kRecursive && !is_power_of_two(request.members))
    throw UserError(name + ": the recursive form needs a power of two members, not " +
                    std::to_string(request.members) + "; the valid algorithm is direct");
  if (request.algorithm == Algorithm::kHierarchical) check_nest(request.nest, request.members);
  if (request.pieces < 1 || (request.pieces > 1 && request.algorithm != Algorithm::kHierarchical))
    throw UserError(name + ": " + std::to_string(request.pieces) + " pieces in the " +
                    algorithm_name(request.algorithm) + " form; the nearest valid number is 1");
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

namespace {

void add_reduction(Pulls& pulls, const Request& request, int64_t destination_offset) {
  switch (request.algorithm) {
    case Algorithm::kDirect:
      return pulls.direct_reduce(destination_offset);
    case Algorithm::kRing:
      return pulls.ring_reduce(destination_offset);
    case Algorithm::kRecursive:
      return pulls.recursive_reduce(destination_offset);
    case Algorithm::kHierarchical:
      return pulls.nested_reduce(Nesting(request.nest, request.members), destination_offset);
  }
}

void add_gather(Pulls& pulls, const Request& request, bool after_reduction) {
  const int64_t levels = static_cast<int64_t>(request.nest.size()) + 1;
  const int64_t first_step =
      after_reduction ? phase_steps(request.algorithm, request.members, levels) : 0;
  switch (request.algorithm) {
    case Algorithm::kDirect:
      return pulls.direct_gather(first_step, after_reduction);
    case Algorithm::kRing:
      return pulls.ring_gather(first_step, after_reduction);
    case Algorithm::kRecursive:
      return pulls.recursive_gather(first_step, after_reduction);
    case Algorithm::kHierarchical:
      return pulls.nested_gather(Nesting(request.nest, request.members), first_step,
                                 after_reduction);
  }
}

void add_broadcast(Pulls& pulls, const Request& request, int64_t position) {
  if (request.algorithm == Algorithm::kHierarchical)
    return pulls.nested_broadcast(Nesting(request.nest, request.members), request.root);
  pulls.add({0, request.root, position, false, Place::kSource, 0, Place::kDestination, 0,
             request.counts[0]});
}

/// Piece p follows p steps behind the first. Every transfer of the form lies inside one part, all
/// of them cut alike, so a piece depends on the same piece alone.
std::vector<Transfer> in_pieces(std::vector<Transfer> whole, int64_t pieces) {
  if (pieces == 1) return whole;
  std::vector<Transfer> result;
  result.reserve(whole.size() * static_cast<size_t>(pieces));
  for (int64_t piece = 0; piece < pieces; ++piece)
    for (Transfer transfer : whole) {
      const int64_t lines = (transfer.elements + kLineElements - 1) / kLineElements;
      const int64_t grain = (lines + pieces - 1) / pieces * kLineElements;
      const int64_t begin = std::min(piece * grain, transfer.elements);
      transfer.elements = std::min(grain, transfer.elements - begin);
      transfer.step += piece;
      transfer.source_offset += begin;
      transfer.destination_offset += begin;
      if (transfer.elements > 0) result.push_back(transfer);
    }
  std::stable_sort(result.begin(), result.end(), [](const Transfer& left, const Transfer& right) {
    return left.step < right.step;
  });
  return result;
}

}  // namespace

std::vector<Transfer> transfers_to(const Request& request, int64_t position) {
  Pulls pulls(request, position);
  switch (request.operation) {
    case Operation::kAllGather:
      add_gather(pulls, request, false);
      break;
    case Operation::kReduceScatter:
      add_reduction(pulls, request, 0);
      break;
    case Operation::kAllReduce:
      add_reduction(pulls, request, pulls.offset());
      add_gather(pulls, request, true);
      break;
    case Operation::kAllToAll:
      pulls.all_to_all();
      break;
    case Operation::kShift:
      pulls.shift(request.root);
      break;
    case Operation::kBroadcast:
      add_broadcast(pulls, request, position);
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
  return in_pieces(pulls.take(), request.pieces);
}

std::vector<Transfer> transfers_from(const Request& request, int64_t position) {
  std::vector<Transfer> result;
  for (int64_t to = 0; to < request.members; ++to) {
    if (to == position) continue;
    for (const Transfer& transfer : transfers_to(request, to))
      if (transfer.from == position) result.push_back(transfer);
  }
  return result;
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
