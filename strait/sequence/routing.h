// A transfer between nodes over several of a node's links: dispatch to proxies inside the node,
// several links at once, combine inside the other node.
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

/// Whether transfers of a group go over proxies: a ring that has all ranks of its nodes, in a plan
/// with proxies.
bool is_routed(const Plan& plan, const Group& group);

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
