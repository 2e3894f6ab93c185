#include "strait/collective/traffic.h"

#include <numeric>

#include "strait/base/errors.h"

namespace strait::collective {

namespace {

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

std::map<std::pair<int64_t, int64_t>, int64_t> elements_per_pair(const Schedule& schedule) {
  std::map<std::pair<int64_t, int64_t>, int64_t> pairs;
  for (const Transfer& transfer : schedule.transfers)
    if (transfer.from != transfer.to) pairs[{transfer.from, transfer.to}] += transfer.elements;
  return pairs;
}

std::vector<int64_t> elements_by_level(const Schedule& schedule, const LevelBetween& level,
                                       int64_t num_levels) {
  std::vector<int64_t> result(num_levels, 0);
  for (const Transfer& transfer : schedule.transfers)
    if (transfer.from != transfer.to)
      result.at(level(transfer.from, transfer.to)) += transfer.elements;
  return result;
}

namespace {

/// Algorithms whose members send different amounts, which no simple form tells.
bool must_walk(const Request& request) {
  return request.algorithm == Algorithm::kRecursive ||
         request.algorithm == Algorithm::kHierarchical;
}

int64_t walk_sent(const Request& request, int64_t position) {
  int64_t elements = 0;
  for (const Transfer& transfer : transfers_from(request, position)) elements += transfer.elements;
  return elements;
}

int64_t walk_received(const Request& request, int64_t position) {
  int64_t elements = 0;
  for (const Transfer& transfer : transfers_to(request, position))
    if (transfer.from != position) elements += transfer.elements;
  return elements;
}

}  // namespace

int64_t sent_elements(const Request& request, int64_t position) {
  const int64_t members = request.members, others = members - 1;
  if (others == 0) return 0;
  if (must_walk(request)) return walk_sent(request, position);
  const std::vector<int64_t>& counts = request.counts;
  const bool ring = request.algorithm == Algorithm::kRing;
  switch (request.operation) {
    case Operation::kAllGather:  // ring: all parts but the right neighbour's own
      return ring ? sum(counts) - counts[(position + 1) % members] : others * counts[position];
    case Operation::kReduceScatter:  // ring: all partial sums but the one that ends here
      return sum(counts) - counts[position];
    case Operation::kAllReduce:
      return sum(counts) - counts[position] +
             (ring ? sum(counts) - counts[(position + 1) % members] : others * counts[position]);
    case Operation::kAllToAll: {
      const auto row = counts.begin() + position * members;
      return std::accumulate(row, row + members, int64_t{0}) - row[position];
    }
    case Operation::kBroadcast:
      return position == request.root ? others * counts[0] : 0;
    case Operation::kSend:
    case Operation::kReceive:
      return position == request.root ? counts[0] : 0;
    case Operation::kBarrier:
      return 0;
  }
  return 0;
}

int64_t received_elements(const Request& request, int64_t position) {
  const int64_t members = request.members, others = members - 1;
  if (others == 0) return 0;
  if (must_walk(request)) return walk_received(request, position);
  const std::vector<int64_t>& counts = request.counts;
  const bool ring = request.algorithm == Algorithm::kRing;
  // A ring reduction receives every partial sum but that of the part which starts here, the left
  // neighbour's.
  const auto reduced = [&] {
    return ring ? sum(counts) - counts[(position + others) % members] : others * counts[position];
  };
  switch (request.operation) {
    case Operation::kAllGather:
      return sum(counts) - counts[position];
    case Operation::kReduceScatter:
      return reduced();
    case Operation::kAllReduce:
      return reduced() + sum(counts) - counts[position];
    case Operation::kAllToAll: {
      int64_t received = 0;
      for (int64_t from = 0; from < members; ++from)
        if (from != position) received += counts[from * members + position];
      return received;
    }
    case Operation::kBroadcast:
      return position == request.root ? 0 : counts[0];
    case Operation::kSend:
    case Operation::kReceive:
      return position == request.receiver ? counts[0] : 0;
    case Operation::kBarrier:
      return 0;
  }
  return 0;
}

int64_t total_elements(const Request& request) {
  const int64_t members = request.members;
  const int64_t whole = sum(request.counts);
  switch (request.operation) {
    case Operation::kAllGather:
    case Operation::kReduceScatter:
    case Operation::kBroadcast:
      return (members - 1) * whole;
    case Operation::kAllReduce:
      return 2 * (members - 1) * whole;
    case Operation::kAllToAll: {
      int64_t kept = 0;
      for (int64_t member = 0; member < members; ++member)
        kept += request.counts[member * (members + 1)];
      return whole - kept;
    }
    case Operation::kSend:
    case Operation::kReceive:
      return whole;
    case Operation::kBarrier:
      return 0;
  }
  return 0;
}

std::vector<std::vector<int64_t>> peers_by_level(const Cluster& cluster,
                                                 const std::vector<int64_t>& members) {
  const int64_t num_levels = static_cast<int64_t>(cluster.levels.size());
  const size_t count = members.size();
  std::vector<std::vector<int64_t>> peers(count, std::vector<int64_t>(num_levels, 0));
  std::vector<int64_t> inside(count, 1);  // members in the same group of the level below
  for (int64_t level = 0; level < num_levels; ++level) {
    const int64_t size = cluster.group_size(level);
    for (size_t begin = 0, end = 0; begin < count; begin = end) {
      while (end < count && members[end] / size == members[begin] / size) ++end;
      for (size_t member = begin; member < end; ++member) {
        const int64_t together = static_cast<int64_t>(end - begin);
        peers[member][level] = together - inside[member];
        inside[member] = together;
      }
    }
  }
  return peers;
}

namespace {

std::vector<int64_t> walk_all_to_all(const Request& request, const Cluster& cluster,
                                     const std::vector<int64_t>& members) {
  std::vector<int64_t> result(cluster.levels.size(), 0);
  for (int64_t from = 0; from < request.members; ++from)
    for (int64_t to = 0; to < request.members; ++to)
      if (from != to)
        result[cluster.level_between(members[from], members[to])] +=
            request.counts[from * request.members + to];
  return result;
}

std::vector<int64_t> walk_ring(const Request& request, const Cluster& cluster,
                               const std::vector<int64_t>& members) {
  std::vector<int64_t> result(cluster.levels.size(), 0);
  for (int64_t from = 0; from < request.members && request.members > 1; ++from)
    result[cluster.level_between(members[from], members[(from + 1) % request.members])] +=
        sent_elements(request, from);
  return result;
}

std::vector<int64_t> walk_recursive(const Request& request, const Cluster& cluster,
                                    const std::vector<int64_t>& members) {
  std::vector<int64_t> result(cluster.levels.size(), 0);
  for (int64_t to = 0; to < request.members; ++to)
    for (const Transfer& transfer : transfers_to(request, to))
      if (transfer.from != to)
        result[cluster.level_between(members[transfer.from], members[to])] += transfer.elements;
  return result;
}

/// A byte enters each group that lacks it once: over level l there are as many fewer groups than members
/// or smaller groups.
std::vector<int64_t> nested_by_level(int64_t elements, const Cluster& cluster,
                                     const std::vector<int64_t>& members) {
  std::vector<int64_t> result;
  int64_t below = static_cast<int64_t>(members.size());
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    const int64_t size = cluster.group_size(static_cast<int64_t>(level));
    int64_t groups = 0;
    for (size_t at = 0; at < members.size(); ++at)
      groups += at == 0 || members[at] / size != members[at - 1] / size ? 1 : 0;
    result.push_back(elements * (below - groups));
    below = groups;
  }
  return result;
}

}  // namespace

std::vector<int64_t> elements_by_level(const Request& request, const Cluster& cluster,
                                       const std::vector<int64_t>& members) {
  ensure(static_cast<int64_t>(members.size()) == request.members,
         "elements_by_level: one rank per member");
  std::vector<int64_t> result(cluster.levels.size(), 0);
  if (request.operation == Operation::kBarrier) return result;
  if (request.operation == Operation::kSend || request.operation == Operation::kReceive) {
    result[cluster.level_between(members[request.root], members[request.receiver])] =
        request.counts[0];
    return result;
  }
  if (request.operation == Operation::kAllToAll) return walk_all_to_all(request, cluster, members);
  if (request.algorithm == Algorithm::kRing) return walk_ring(request, cluster, members);
  if (request.algorithm == Algorithm::kRecursive) return walk_recursive(request, cluster, members);
  const int64_t phases = request.operation == Operation::kAllReduce ? 2 : 1;
  if (request.algorithm == Algorithm::kHierarchical)
    return nested_by_level(phases * sum(request.counts), cluster, members);
  const auto peers = peers_by_level(cluster, members);
  for (int64_t member = 0; member < request.members; ++member) {
    const bool broadcast = request.operation == Operation::kBroadcast;
    if (broadcast && member != request.root) continue;
    const int64_t elements = phases * request.counts[broadcast ? 0 : member];
    for (size_t level = 0; level < result.size(); ++level)
      result[level] += elements * peers[member][level];
  }
  return result;
}

}  // namespace strait::collective
