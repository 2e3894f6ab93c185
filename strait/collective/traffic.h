// What a collective moves over each level, counted on its transfers.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/collective/schedule.h"
#include "strait/topology/cluster.h"

namespace strait::collective {

/// Whether the members (ascending ranks) lie alike on the levels: every group of a level that holds
/// any holds equally many. Then each member sees the others as every other member does. O(members *
/// levels).
bool lies_evenly(const Cluster& cluster, const std::vector<int64_t>& members);

/// Elements that cross links, by level; copies inside a member are not among them. `members` are
/// the ranks behind the positions, and a hierarchical request's nest is nest_of(cluster, members).
///
/// Where the members lie evenly, the transfers of one of them are counted, all of one element: as
/// many members pull a part over a level as one member pulls parts, so the count times the elements
/// of all parts is exact, however uneven they are. O(members * levels). Otherwise, and for ring,
/// recursive and unequal all-to-all, every member's transfers are: O(members^2).
std::vector<int64_t> elements_by_level(const Request& request, const Cluster& cluster,
                                       const std::vector<int64_t>& members);

}  // namespace strait::collective
