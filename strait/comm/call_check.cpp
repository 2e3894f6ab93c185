#include "strait/comm/call_check.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "strait/base/errors.h"
#include "strait/comm/failure.h"
#include "strait/comm/sums.h"

namespace strait::comm {

namespace {

int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

/// Buffers of a member in bytes; what an operation does not use on this side is 0.
struct Extents {
  int64_t source = 0;
  int64_t destination = 0;
  int64_t own_offset = -1;  // where the smaller buffer may lie inside the larger one; -1: nowhere
};

Extents extents(const Call& call, int64_t position, int64_t members) {
  const int64_t size = dtype_bytes(call.dtype);
  const std::vector<int64_t> counts = part_counts(call, members);
  const int64_t whole = total(counts) * size;
  const auto before = [&] {
    return std::accumulate(counts.begin(), counts.begin() + position, int64_t{0}) * size;
  };
  switch (call.operation) {
    case Operation::kAllGather:
      return {counts[position] * size, whole, before()};
    case Operation::kReduceScatter:
      return {whole, counts[position] * size, before()};
    case Operation::kAllReduce:
      return {whole, whole, 0};
    case Operation::kAllToAll:
      return {whole, total(call.receive_counts) * size, -1};
    case Operation::kShift:
      return {whole, whole, -1};
    case Operation::kBroadcast:
      if (position != call.peer) return {0, whole, -1};
      return {whole, call.destination ? whole : 0, 0};
    case Operation::kSend:
      return {whole, 0, -1};
    case Operation::kReceive:
      return {0, whole, -1};
    case Operation::kBarrier:
      return {};
  }
  return {};
}

void check_counts(const Call& call, int64_t position, int64_t members, const std::string& who) {
  size_t wanted = static_cast<size_t>(members);
  if (is_pairwise(call.operation) || call.operation == Operation::kBroadcast ||
      call.operation == Operation::kShift)
    wanted = 1;
  if (call.operation == Operation::kBarrier) wanted = 0;
  const bool whole_vector = call.operation == Operation::kAllReduce && call.counts.size() == 1;
  if (call.counts.size() != wanted && !whole_vector)
    throw UserError(who + ": expected " + std::to_string(wanted) + " counts for " +
                    std::to_string(members) + " members, got " +
                    std::to_string(call.counts.size()));
  for (const std::vector<int64_t>* counts : {&call.counts, &call.receive_counts})
    for (const int64_t count : *counts)
      if (count < 0)
        throw UserError(who + ": a count is " + std::to_string(count) + "; the smallest is 0");
  if (call.operation != Operation::kAllToAll) return;
  if (call.receive_counts.size() != wanted)
    throw UserError(who + ": expected " + std::to_string(wanted) + " receive counts, got " +
                    std::to_string(call.receive_counts.size()));
  if (call.counts[position] != call.receive_counts[position])
    throw UserError(who + ": sends itself " + std::to_string(call.counts[position]) +
                    " elements but receives " + std::to_string(call.receive_counts[position]));
}

void check_buffers(const Call& call, const Extents& bytes, const std::string& who) {
  if (bytes.source > 0 && !call.source) throw UserError(who + ": the source is null");
  if (bytes.destination > 0 && !call.destination)
    throw UserError(who + ": the destination is null");
  if (bytes.source == 0 || bytes.destination == 0) return;
  const char* source = static_cast<const char*>(call.source);
  const char* destination = static_cast<const char*>(call.destination);
  if (source + bytes.source <= destination || destination + bytes.destination <= source) return;
  const bool source_inside = bytes.source <= bytes.destination;
  const int64_t offset = source_inside ? source - destination : destination - source;
  if (bytes.own_offset < 0)
    throw UserError(who + ": source and destination overlap; this operation has no in-place form");
  if (offset != bytes.own_offset)
    throw UserError(who + ": source and destination overlap at byte " + std::to_string(offset) +
                    "; the in-place form wants byte " + std::to_string(bytes.own_offset));
  const bool copies =
      call.operation == Operation::kAllGather || call.operation == Operation::kBroadcast;
  if (call.accumulate && copies) throw UserError(who + ": accumulating has no in-place form here");
}

}  // namespace

bool is_pairwise(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kReceive;
}

bool has_common_peer(Operation operation) {
  return operation == Operation::kBroadcast || operation == Operation::kShift;
}

std::vector<int64_t> part_counts(const Call& call, int64_t members) {
  if (call.operation == Operation::kAllReduce && call.counts.size() == 1)
    return collective::even_counts(call.counts[0], members);
  return call.counts;
}

void check_call(const Call& call, int64_t position, int64_t members, int64_t rank) {
  const std::string who = describe(call, rank);
  if (!(call.deadline_seconds > 0.0))
    throw UserError(who + ": deadline of " + std::to_string(call.deadline_seconds) +
                    " s; it must be above 0");
  check_counts(call, position, members, who);
  const bool has_peer = is_pairwise(call.operation) || has_common_peer(call.operation);
  if (has_peer && (call.peer < 0 || call.peer >= members))
    throw UserError(who + ": peer " + std::to_string(call.peer) + " is not in 0.." +
                    std::to_string(members - 1));
  if (is_pairwise(call.operation) && call.peer == position)
    throw UserError(who + ": peer " + std::to_string(call.peer) + " is this member itself");
  const bool sums = call.accumulate || call.operation == Operation::kReduceScatter ||
                    call.operation == Operation::kAllReduce;
  if (sums && !is_summable(call.dtype))
    throw UserError(who + ": no sum of " + dtype_name(call.dtype) +
                    "; the nearest type that can be summed is fp32");
  check_buffers(call, extents(call, position, members), who);
}

namespace {

std::string counts_text(const std::vector<int64_t>& counts) {
  std::string text;
  for (const int64_t count : counts) text += (text.empty() ? "[" : ", ") + std::to_string(count);
  return counts.empty() ? "[]" : text + "]";
}

std::string details(const Call& call) {
  std::string text = std::string(dtype_name(call.dtype)) + " " + counts_text(call.counts);
  if (call.operation == Operation::kBroadcast)
    text += " from position " + std::to_string(call.peer);
  if (call.operation == Operation::kShift && call.peer > 0)
    text += " skipping " + std::to_string(call.peer);
  return text;
}

}  // namespace

std::string mismatch(const Call& own, int64_t own_position, const Call& other,
                     int64_t other_position) {
  bool same = own.operation == other.operation && own.dtype == other.dtype;
  if (same && own.operation == Operation::kAllToAll)
    same = own.receive_counts[other_position] == other.counts[own_position] &&
           own.counts[other_position] == other.receive_counts[own_position];
  else if (same)
    same =
        own.counts == other.counts && (!has_common_peer(own.operation) || own.peer == other.peer);
  if (same) return "";
  return std::string(operation_name(own.operation)) + " \"" + own.label + "\" " + details(own) +
         " meets " + operation_name(other.operation) + " \"" + other.label + "\" " + details(other);
}

void check_members(const std::vector<int64_t>& members, int64_t rank, int64_t size) {
  const std::string who = "communicator on rank " + std::to_string(rank);
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= size)
      throw UserError(who + ": member " + std::to_string(members[i]) + " is not in 0.." +
                      std::to_string(size - 1));
    if (i > 0 && members[i] <= members[i - 1])
      throw UserError(who + ": members must ascend, but " + std::to_string(members[i]) +
                      " follows " + std::to_string(members[i - 1]));
  }
  if (!std::binary_search(members.begin(), members.end(), rank))
    throw UserError(who + ": this rank is not among the members");
}

}  // namespace strait::comm
