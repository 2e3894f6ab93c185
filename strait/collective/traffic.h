// What a schedule moves: elements per pair, per member and per level; by walking the transfers, and
// in closed form for groups too large to walk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "strait/collective/schedule.h"
#include "strait/topology/cluster.h"

namespace strait::collective {

/// Level of the link between two positions, from != to.
using LevelBetween = std::function<int64_t(int64_t from, int64_t to)>;

/// Elements that cross a link, by (from, to). Copies inside a member are not among them.
std::map<std::pair<int64_t, int64_t>, int64_t> elements_per_pair(const Schedule& schedule);
/// Elements that cross links, by level. O(transfers).
std::vector<int64_t> elements_by_level(const Schedule& schedule, const LevelBetween& level,
                                       int64_t num_levels);

/// Elements that member `position` sends, and pulls from others, without building the schedule.
/// O(counts); recursive and hierarchical forms walk.
int64_t sent_elements(const Request& request, int64_t position);
int64_t received_elements(const Request& request, int64_t position);
/// Elements over all links and members. O(counts). With V = sum of counts: all-gather,
/// reduce-scatter and broadcast (n-1) V, all-reduce 2 (n-1) V for every algorithm; all-to-all V -
/// diagonal; send V.
int64_t total_elements(const Request& request);

/// [member][level]: how many other members each one reaches over a level, for members given as
/// ascending ranks of the cluster. O(members * levels).
std::vector<std::vector<int64_t>> peers_by_level(const Cluster& cluster,
                                                 const std::vector<int64_t>& members);

/// Elements by level without building the schedule; equal to walking it. `members` are the ranks
/// behind the positions, and a hierarchical request's nest is nest_of(cluster, members). O(members * levels);
/// all-to-all and recursive O(members^2).
std::vector<int64_t> elements_by_level(const Request& request, const Cluster& cluster,
                                       const std::vector<int64_t>& members);

}  // namespace strait::collective
