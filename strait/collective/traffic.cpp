#include "strait/collective/traffic.h"

#include <numeric>

#include "strait/base/errors.h"

namespace strait::collective {
namespace {

/// Adds what one member pulls from others.
void add_pulls(const Request& request, int64_t position, const Cluster& cluster,
               const std::vector<int64_t>& members, std::vector<int64_t>& elements) {
  for (const Transfer& transfer : transfers_to(request, position))
    if (transfer.from != position)
      elements[cluster.level_between(members[transfer.from], members[position])] +=
          transfer.elements;
}

bool is_pairwise(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kReceive;
}

/// Whether one member's transfers stand for those of all.
bool by_symmetry(const Request& request, const Cluster& cluster,
                 const std::vector<int64_t>& members) {
  const bool levelled =
      request.algorithm == Algorithm::kDirect || request.algorithm == Algorithm::kHierarchical;
  const bool one_row = request.operation != Operation::kAllToAll ||
                       static_cast<int64_t>(request.counts.size()) == request.members;
  return levelled && one_row && request.operation != Operation::kShift &&
         !is_pairwise(request.operation) && lies_evenly(cluster, members);
}

}  // namespace

bool lies_evenly(const Cluster& cluster, const std::vector<int64_t>& members) {
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    const int64_t size = cluster.group_size(static_cast<int64_t>(level));
    size_t first = 0;  // members in the first group of the level
    for (size_t begin = 0, end = 0; begin < members.size(); begin = end) {
      while (end < members.size() && members[end] / size == members[begin] / size) ++end;
      if (begin == 0) first = end;
      if (end - begin != first) return false;
    }
  }
  return true;
}

std::vector<int64_t> elements_by_level(const Request& request, const Cluster& cluster,
                                       const std::vector<int64_t>& members) {
  ensure(static_cast<int64_t>(members.size()) == request.members,
         "elements_by_level: one rank per member");
  std::vector<int64_t> result(cluster.levels.size(), 0);
  if (request.operation == Operation::kBarrier) return result;
  if (!by_symmetry(request, cluster, members)) {
    for (int64_t position = 0; position < request.members; ++position)
      add_pulls(request, position, cluster, members, result);
    return result;
  }
  Request one = request;
  // A broadcast goes where one part of an all-gather goes.
  if (request.operation == Operation::kBroadcast) one.operation = Operation::kAllGather;
  one.root = 0;
  one.pieces = 1;
  one.counts.assign(static_cast<size_t>(request.members), 1);
  add_pulls(one, 0, cluster, members, result);
  const int64_t whole = std::accumulate(request.counts.begin(), request.counts.end(), int64_t{0});
  for (int64_t& elements : result) elements *= whole;
  return result;
}

}  // namespace strait::collective
