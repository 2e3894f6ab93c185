#include "strait/sim/link_counter.h"

#include <numeric>

#include "strait/collective/choose.h"
#include "strait/collective/of_op.h"
#include "strait/collective/traffic.h"
#include "strait/program/classes.h"
#include "strait/program/transfer.h"

namespace strait::sim {

using program::Op;
using program::OpKind;
using program::Program;

namespace {

/// The request of `op` among `members`, in the form that the backends choose for it.
collective::Request request_of(const Op& op, const program::Split& split, int64_t element_bytes,
                               const std::vector<int64_t>& members, const Cluster& cluster) {
  collective::Request request;
  request.operation = collective::operation_of(op.kind);
  request.members = static_cast<int64_t>(members.size());
  if (op.kind == OpKind::kBroadcast || op.kind == OpKind::kShift) request.root = op.peer.constant;
  for (int64_t part = 0; part < split.parts; ++part) request.counts.push_back(split.count(part));
  collective::choose_form(request, split.elements() * element_bytes, cluster, members);
  return request;
}

}  // namespace

const std::vector<int64_t>& LinkCounter::bytes(const Program& program, const Op& op, int64_t peer) {
  const auto [found, fresh] = bytes_.try_emplace({&op, peer}, cluster_.levels.size(), 0);
  Levels& levels = found->second;
  const bool silent = op.kind == OpKind::kBarrier || op.kind == OpKind::kReceive;
  if (!fresh || silent || program.groups[op.group].size == 1) return levels;
  if (op.kind == OpKind::kSend)
    add_messages(program, op, peer, levels);
  else
    add_collectives(program, op, levels);
  const int64_t element = dtype_bytes(program::transfer_array(program, op).dtype);
  for (int64_t& bytes : levels) bytes *= element;
  return levels;
}

void LinkCounter::add_messages(const Program& program, const Op& op, int64_t peer,
                               Levels& elements) const {
  const program::Group& group = program.groups[op.group];
  for (const int64_t rank : program::class_ranks(program))
    elements[cluster_.level_between(rank, group.member(rank, peer))] +=
        program::transfer_split(program, op, rank).elements();
}

void LinkCounter::add_collectives(const Program& program, const Op& op, Levels& elements) {
  const int64_t element_bytes = dtype_bytes(program::transfer_array(program, op).dtype);
  std::map<std::pair<int, int64_t>, int64_t> alike;  // (kind, elements of the whole) -> groups
  const auto add = [&](const Levels& found, int64_t times) {
    for (size_t level = 0; level < found.size(); ++level) elements[level] += found[level] * times;
  };
  for (const Instance& instance : instances(program, op.group)) {
    const program::Split split = program::transfer_split(program, op, instance.base);
    if (kinds_[instance.kind].even) {
      ++alike[{instance.kind, split.elements()}];
      continue;
    }
    const std::vector<int64_t> members = program.groups[op.group].members(instance.base);
    add(collective::elements_by_level(request_of(op, split, element_bytes, members, cluster_),
                                      cluster_, members),
        1);
  }
  for (const auto& [key, groups] : alike) {
    const auto [kind, whole] = key;
    const std::vector<int64_t>& members = kinds_[kind].members;
    const program::Split one_part{{whole, whole}, 0, 1};
    add(per_element(request_of(op, one_part, element_bytes, members, cluster_), kind),
        whole * groups);
  }
}

/// Elements over each level for every element of the whole vector.
const LinkCounter::Levels& LinkCounter::per_element(const collective::Request& request, int kind) {
  const bool shifts = request.operation == collective::Operation::kShift;
  const auto [found, fresh] = per_element_.try_emplace(
      {request.operation, request.algorithm, shifts ? request.root : 0, kind});
  if (!fresh) return found->second;
  collective::Request one = request;
  const bool one_count = request.operation == collective::Operation::kBroadcast ||
                         request.operation == collective::Operation::kShift;
  one.counts.assign(one_count ? 1 : request.members, 0);
  one.counts.front() = 1;
  found->second = collective::elements_by_level(one, cluster_, kinds_[kind].members);
  return found->second;
}

const std::vector<LinkCounter::Instance>& LinkCounter::instances(const Program& program,
                                                                 int group) {
  const auto [found, fresh] = instances_.try_emplace({&program, group});
  if (!fresh) return found->second;
  const program::Group& groups = program.groups[group];
  for (const int64_t rank : program::class_ranks(program))
    if (groups.position(rank) == 0) found->second.push_back({rank, kind_of(groups.members(rank))});
  return found->second;
}

int LinkCounter::kind_of(const std::vector<int64_t>& members) {
  std::vector<int64_t> runs = {static_cast<int64_t>(members.size())};
  for (size_t level = 0; level < cluster_.levels.size(); ++level) {
    const int64_t size = cluster_.group_size(static_cast<int64_t>(level));
    for (size_t begin = 0, end = 0; begin < members.size(); begin = end) {
      while (end < members.size() && members[end] / size == members[begin] / size) ++end;
      runs.push_back(static_cast<int64_t>(end - begin));
    }
  }
  const int next = static_cast<int>(kinds_.size());
  const auto [found, fresh] = kind_numbers_.try_emplace(std::move(runs), next);
  if (fresh) kinds_.push_back({members, collective::lies_evenly(cluster_, members)});
  return found->second;
}

}  // namespace strait::sim
