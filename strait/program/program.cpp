#include "strait/program/program.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "strait/program/shares.h"

namespace strait::program {

int64_t Partition::begin(int64_t part) const { return std::min(part * grain, elements); }

int64_t Group::parts() const {
  if (nest.empty()) return size;
  return std::accumulate(nest.begin(), nest.end(), int64_t{1}, std::multiplies<>());
}

int64_t part_of(const std::vector<int64_t>& hops, int64_t place) {
  int64_t part = 0;
  for (const int64_t hop : hops) {
    part = part * hop + place % hop;
    place /= hop;
  }
  return part;
}

int64_t Group::part(int64_t rank) const {
  return nest.empty() ? position(rank) : part_of(nest, rank / (stride * size / parts()));
}

std::vector<int64_t> Group::members(int64_t rank) const {
  std::vector<int64_t> result;
  for (int64_t at = 0; at < size; ++at) result.push_back(member(rank, at));
  return result;
}

bool same_members(const Group& a, const Group& b, int64_t ranks) {
  if (a.size != b.size) return false;
  if (a.lists.empty() && b.lists.empty()) return a.stride == b.stride || a.size == 1;
  if (a.lists == b.lists) return true;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (a.position(rank) != b.position(rank)) return false;
    if (a.holds(rank) && a.base(rank) != b.base(rank)) return false;
  }
  return true;
}

const char* op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::kKernel:
      return "kernel";
    case OpKind::kCopy:
      return "copy";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kShift:
      return "shift";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kSend:
      return "send";
    case OpKind::kReceive:
      return "receive";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kFree:
      return "free";
  }
  return "?";
}

const char* op_name(const Op& op) {
  return op.kernel != nullptr ? op.kernel->name : op_kind_name(op.kind);
}

const Operand* operand_in(const std::vector<Operand>& operands, int slot) {
  for (const Operand& operand : operands)
    if (operand.slot == slot) return &operand;
  return nullptr;
}

namespace {

/// A value joined with those of a group: the share of `partition` that it is in, and which part.
struct SharePart {
  Partition share;
  int64_t begin = 0, part = 0;
};

SharePart share_part(const Program& program, const ValueArray& array, int64_t rank, int64_t index) {
  const Group& group = program.groups[static_cast<size_t>(array.group)];
  const int64_t parts = array.count / group.size, elements = array.partition.elements / group.size;
  const int64_t owner = (group.position(rank) + index / parts) % group.size;
  return {{elements, array.partition.grain}, owner * elements, index % parts};
}

}  // namespace

int64_t value_begin(const Program& program, const ValueArray& array, int64_t rank) {
  const bool whole = array.group < 0 || array.joined;
  return whole ? 0 : array.partition.begin(program.groups[array.group].part(rank));
}

int64_t value_elements(const Program& program, const ValueArray& array, int64_t rank) {
  if (array.group < 0 || array.joined) return array.partition.elements;
  return array.partition.count(program.groups[array.group].part(rank));
}

int64_t value_bytes(const Program& program, const ValueArray& array, int64_t rank) {
  return value_elements(program, array, rank) * dtype_bytes(array.dtype);
}

int64_t value_elements(const Program& program, const ValueArray& array, int64_t rank,
                       int64_t index) {
  if (!array.joined) return value_elements(program, array, rank);
  if (array.group < 0) return array.partition.count(index);
  const SharePart at = share_part(program, array, rank, index);
  return at.share.count(at.part);
}

int64_t joined_begin(const Program& program, const ValueArray& array, int64_t rank, int64_t index) {
  if (array.group < 0) return array.partition.begin(index);
  const SharePart at = share_part(program, array, rank, index);
  return at.begin + at.share.begin(at.part);
}

int64_t value_bytes(const Program& program, const ValueArray& array, int64_t rank, int64_t index) {
  return value_elements(program, array, rank, index) * dtype_bytes(array.dtype);
}

bool continues(const Program& program, const Operand& before, const Operand& operand) {
  return before.array == operand.array && before.slot == operand.slot &&
         before.access == operand.access &&
         program.arrays[static_cast<size_t>(operand.array)].joined &&
         before.index.constant + 1 == operand.index.constant;
}

namespace {

int64_t count_nodes(const std::vector<Node>& nodes, bool times_counts) {
  int64_t total = 0;
  for (const Node& node : nodes) {
    if (const Repeat* repeat = std::get_if<Repeat>(&node)) {
      total += count_nodes(repeat->body, times_counts) * (times_counts ? repeat->count : 1);
    } else {
      ++total;
    }
  }
  return total;
}

}  // namespace

int64_t count_ops(const Program& program) { return count_nodes(program.body, false); }

int64_t count_instances(const Program& program) { return count_nodes(program.body, true); }

std::vector<std::string> stream_names(const Program& program) {
  std::vector<std::string> names;
  for (size_t s = 0; s < program.streams.size(); ++s) {
    const Stream& stream = program.streams[s];
    names.push_back(s == kCompute ? stream.resource
                                  : stream.resource + "." + std::to_string(stream.lane));
  }
  return names;
}

}  // namespace strait::program
