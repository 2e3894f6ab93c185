// What a schedule moves, by walking all of its transfers.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "strait/collective/schedule.h"
#include "strait/topology/cluster.h"

namespace strait::collective {

/// Elements that cross a link, by (from, to). Copies inside a member are not among them.
inline std::map<std::pair<int64_t, int64_t>, int64_t> elements_per_pair(const Schedule& schedule) {
  std::map<std::pair<int64_t, int64_t>, int64_t> pairs;
  for (const Transfer& transfer : schedule.transfers)
    if (transfer.from != transfer.to) pairs[{transfer.from, transfer.to}] += transfer.elements;
  return pairs;
}

/// Elements that cross links, by level.
inline std::vector<int64_t> walked_by_level(const Schedule& schedule, const Cluster& cluster,
                                            const std::vector<int64_t>& members) {
  std::vector<int64_t> result(cluster.levels.size(), 0);
  for (const auto& [pair, elements] : elements_per_pair(schedule))
    result.at(cluster.level_between(members[pair.first], members[pair.second])) += elements;
  return result;
}

}  // namespace strait::collective
