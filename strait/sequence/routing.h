// A transfer between nodes over several of a node's links: dispatch to proxies inside the node,
// several links at once, combine inside the other node. Or without: groups of key heads whose rings
// leave a node over another rank each; or ranks of a node that exchange heads, of which each is on
// a ring of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strait/sequence/plan.h"

namespace strait::sequence {

/// Seconds per byte (1 / bandwidth) and per message, of a rank's link inside its node and of one
/// link between nodes.
struct RouteLinks {
  double inside_byte_seconds = 0, between_byte_seconds = 0;
  double inside_latency_seconds = 0, between_latency_seconds = 0;
  int64_t of_node = 0;  // links between nodes that a node has; 0: one for each proxy
};

struct Route {
  int64_t proxies = 1;  // per side; 1 is direct
  int64_t pieces = 1;   // in which the three stages overlap
  double seconds = 0;
};

/// b_i m (x - 1)/x + b_o m/x + b_i m (x - 1)/x with latencies; in p pieces the sum over p, and (p -
/// 1)/p of the longest stage more.
double route_seconds(double bytes, int64_t proxies, int64_t pieces, const RouteLinks& links);
/// The fastest of all proxies up to `most_proxies` and pieces up to `most_pieces` (powers of two
/// and what is between them: every count); the fewest of equals.
Route best_route(double bytes, int64_t most_proxies, int64_t most_pieces, const RouteLinks& links);

/// Bytes of a route: between nodes always `bytes`, inside each of the two nodes bytes (x - 1)/x,
/// exact with pieces of uneven size.
struct RouteBytes {
  int64_t between = 0, inside = 0;
};
RouteBytes route_bytes(int64_t bytes, int64_t proxies);

/// Rows of a message that crosses nodes, in chunks of `grain` rows, the last one of what is left.
/// Chunk c goes over proxy c mod `proxies`, of which 0 is the sender itself; no rows count as one.
struct RoutedRows {
  int64_t rows = 1, grain = 1, proxies = 1;
  int64_t chunks() const { return (rows + grain - 1) / grain; }
  /// What is moved inside the sender's node, and as much again inside the receiver's.
  int64_t dispatched() const;
};
RoutedRows routed_rows(int64_t rows, int64_t proxies, int64_t pieces);

/// The ranks between which a chunk crosses, on its way from rank `from` to rank `to`.
struct Crossing {
  int64_t from = 0, to = 0;
  bool operator==(const Crossing&) const = default;
};
Crossing crossing_of(int64_t chunk, int64_t proxies, const Crossing& message, const RankGrid& grid);

/// How many neighbours of a group exchange heads (Fang & Zhao 2024, USP; Gu et al. 2024,
/// LoongTrain): Plan::head_ranks of a ring between nodes whose ranks are runs of as many, each run
/// in one node; else 1. Together a run has two chunks of a document as one member of a ring of runs
/// would, for c_j = floor(j s / 2g) are among the borders of its ranks' chunks.
int64_t head_ranks_of(const Plan& plan, const Group& group);

/// Whether transfers of a group go over proxies: a ring that has all ranks of its nodes, in a plan
/// with proxies, and whose ranks exchange no heads.
bool is_routed(const Plan& plan, const Group& group);

/// Whether a group's keys go around in several orders: as is_routed, in a plan with rotations.
bool is_rotated(const Plan& plan, const Group& group);

/// Key heads [begin, end).
struct KeyHeads {
  int64_t begin = 0, end = 1;
  int64_t size() const { return end - begin; }
};
/// Those of one of `parts` groups of `all` key heads, which differ by one head at most.
KeyHeads key_heads_of(int64_t part, int64_t parts, int64_t all);
/// The members of a ring of `size` that has all `per_node` ranks of its nodes, in the order in
/// which the keys of a part go around: node by node, and in each from another rank on. The rank
/// before that one sends to the next node: those of parts are different ones while there are at
/// most `per_node` parts.
std::vector<int32_t> rotated_members(int64_t size, int64_t per_node, int64_t part, int64_t parts);
/// A round of all parts, which go around at once: between nodes as many links as there are parts
/// carry one each, the largest longest; inside a node a rank sends at most all.
double rotated_seconds(double bytes, int64_t parts, int64_t key_heads, const RouteLinks& links);
/// The same where each part crosses over proxies of its own, which are as many ranks of a node as
/// parts times proxies.
double rotated_route_seconds(double bytes, int64_t parts, int64_t key_heads, const Route& route,
                             const RouteLinks& links);
/// The fastest number of parts from `least` on, at most `most`; the fewest of equals.
int64_t best_rotation(double bytes, int64_t least, int64_t most, int64_t key_heads,
                      const RouteLinks& links);

/// A round of the rings of `neighbours` that exchange heads, whose messages leave a node at once,
/// `bytes` each, over as many of its links as there are.
double parallel_seconds(double bytes, int64_t neighbours, const RouteLinks& links);

/// A share of a message that one link carries.
struct Piece {
  int32_t message = 0, link = 0;
  int64_t begin = 0, bytes = 0;
};
/// Cuts all messages that cross a node's border in one round into pieces of at most `piece_bytes`
/// and deals them to its links in turn: the numbers of pieces per link differ by at most one. Every
/// byte stands in one piece.
std::vector<Piece> deal_pieces(std::span<const int64_t> message_bytes, int64_t links,
                               int64_t piece_bytes);

}  // namespace strait::sequence
