// What a collective costs on a cluster, and which algorithm that makes the best one. Backends, cost
// and sim ask the same functions, so that what is predicted is what runs.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/collective/schedule.h"
#include "strait/topology/cluster.h"

namespace strait::collective {

/// How a group lies on the levels of a cluster: [level] = its members in one group of that level,
/// the most there are. The last is the size of the group when the outermost level holds everything.
using Spread = std::vector<int64_t>;

/// `members`: ascending ranks. O(members * levels).
Spread spread_of(const Cluster& cluster, const std::vector<int64_t>& members);

/// Elements over each level, summed over the group, for each element of the whole vector: direct
/// m_l - m_(l-1), hierarchical N_(l-1) - N_l with N_l = n / m_l groups; all-reduce twice that.
/// Broadcast from one root, all-to-all of equal parts. `skipped`: of a shift. Exact when every
/// group of a level holds equally many members.
std::vector<double> relative_traffic(Operation operation, Algorithm algorithm, const Spread& spread,
                                     int64_t skipped = 0);

/// Seconds on idle links while all groups of the cluster do the same: direct = the busiest level,
/// its latency once per exchange; hierarchical = the busiest level, and of the others what one
/// piece of pieces_of takes, with a latency for each further piece. A shift takes what one to the
/// next member does: exact for one that skips some where no level parts the group. O(levels).
double transfer_seconds(Operation operation, Algorithm algorithm, double vector_bytes,
                        const Spread& spread, const Cluster& cluster);

/// What a transfer over a level takes longer while a rank of it computes: 1 ms where transfers take
/// processor time (Level::processor_share), else nothing. Bytes are moved by a thread that shares a
/// core with one that computes and looks at its messages every half a millisecond; until it has
/// seen the end of one and begun the next, the link stands still. Measured beside products, one
/// core per rank, over TCP: 0.6 to 1.5 ms.
double late_seconds(const Level& level);
/// The same of an operation, for each exchange that it is made of.
double late_seconds(Operation operation, const Spread& spread, const Cluster& cluster);

/// Ranks that a message goes between, of so many in the world.
struct Hop {
  int64_t from = 0, to = 0, ranks = 1;
};
/// Seconds of one message of `bytes` on a link of its own.
double lone_message_seconds(double bytes, const Level& level);
/// The same on idle links, while all ranks send as far around the world,
/// the last ones to the first: those of a group of the level below whose messages leave it share
/// its links, and each takes one of them. O(levels).
double message_seconds(double bytes, const Hop& hop, const Cluster& cluster);

/// direct or hierarchical, whichever is predicted faster. An all-reduce is a reduce-scatter and an
/// all-gather of the same form, so that all placements add in the same order.
Algorithm choose(Operation operation, double vector_bytes, const Spread& spread,
                 const Cluster& cluster);

/// Into how many pieces a hierarchical form cuts a vector of so many bytes: enough to hide the
/// inner levels behind the outermost, few enough that latencies stay small beside them.
int64_t pieces_of(int64_t vector_bytes);

/// Sets algorithm, nest and pieces of `request`, whose whole vector has `vector_bytes`. `members`:
/// ranks behind the positions, ascending.
void choose_form(Request& request, int64_t vector_bytes, const Cluster& cluster,
                 const std::vector<int64_t>& members);

/// The same with the hierarchical form, whatever it costs.
void choose_hierarchical(Request& request, int64_t vector_bytes, const Cluster& cluster,
                         const std::vector<int64_t>& members);

}  // namespace strait::collective
