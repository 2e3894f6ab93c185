#include "strait/sequence/routing.h"

#include <algorithm>

namespace strait::sequence {

double route_seconds(double bytes, int64_t proxies, int64_t pieces, const RouteLinks& links) {
  const double x = static_cast<double>(proxies), p = static_cast<double>(pieces);
  const double used = links.of_node == 0 ? x : std::min(x, static_cast<double>(links.of_node));
  const double between = links.between_byte_seconds * bytes / used;
  const double between_latency = links.between_latency_seconds * p;
  if (proxies == 1) return between + links.between_latency_seconds;
  const double inside = links.inside_byte_seconds * bytes * (x - 1) / x;
  const double stage = inside + links.inside_latency_seconds * p;
  const double crossing = between + between_latency;
  return (2 * stage + crossing) / p + (p - 1) / p * std::max(stage, crossing);
}

Route best_route(double bytes, int64_t most_proxies, int64_t most_pieces, const RouteLinks& links) {
  Route best{1, 1, route_seconds(bytes, 1, 1, links)};
  for (int64_t proxies = 2; proxies <= most_proxies; ++proxies)
    for (int64_t pieces = 1; pieces <= most_pieces; ++pieces)
      if (const double seconds = route_seconds(bytes, proxies, pieces, links);
          seconds < best.seconds)
        best = {proxies, pieces, seconds};
  return best;
}

RouteBytes route_bytes(int64_t bytes, int64_t proxies) {
  return {bytes, bytes - (bytes + proxies - 1) / proxies};  // the first proxy is the sender itself
}

int64_t RoutedRows::dispatched() const {
  int64_t sum = 0;
  for (int64_t chunk = 0; chunk < chunks(); ++chunk)
    if (chunk % proxies != 0) sum += std::min(grain, rows - chunk * grain);
  return sum;
}

RoutedRows routed_rows(int64_t rows, int64_t proxies, int64_t pieces) {
  const int64_t all = std::max<int64_t>(1, rows), most = proxies * pieces;
  return {all, (all + most - 1) / most, proxies};
}

Crossing crossing_of(int64_t chunk, int64_t proxies, const Crossing& message,
                     const RankGrid& grid) {
  const auto proxy = [&](int64_t rank) {
    const int64_t first = grid.node_of(rank) * grid.per_node;
    return first + (rank - first + chunk % proxies) % grid.per_node;
  };
  return {proxy(message.from), proxy(message.to)};
}

namespace {

/// Whether a group is a ring that has all ranks of several nodes.
bool has_whole_nodes(const Plan& plan, const Group& group) {
  const int64_t per_node = plan.grid.per_node, size = std::ssize(group.ranks);
  if (group.engine != Engine::kRing || size <= per_node || size % per_node != 0) return false;
  for (int64_t at = 0; at < size; at += per_node) {
    const int32_t first = group.ranks[static_cast<size_t>(at)];
    if (first % per_node != 0 ||
        group.ranks[static_cast<size_t>(at + per_node - 1)] != first + per_node - 1)
      return false;
  }
  return true;
}

}  // namespace

int64_t head_ranks_of(const Plan& plan, const Group& group) {
  const int64_t neighbours = plan.head_ranks, size = std::ssize(group.ranks);
  if (neighbours == 1 || group.engine != Engine::kRing || group.zone != Zone::kInter) return 1;
  if (size % neighbours != 0 || size == neighbours) return 1;
  for (int64_t at = 0; at < size; at += neighbours) {
    const auto last = static_cast<size_t>(at + neighbours - 1);
    if (plan.grid.node_of(group.ranks[static_cast<size_t>(at)]) !=
        plan.grid.node_of(group.ranks[last]))
      return 1;
  }
  return neighbours;
}

bool is_routed(const Plan& plan, const Group& group) {
  return plan.proxies > 1 && has_whole_nodes(plan, group) && head_ranks_of(plan, group) == 1;
}

bool is_rotated(const Plan& plan, const Group& group) {
  return plan.rotations > 1 && has_whole_nodes(plan, group) && head_ranks_of(plan, group) == 1;
}

KeyHeads key_heads_of(int64_t part, int64_t parts, int64_t all) {
  return {part * all / parts, (part + 1) * all / parts};
}

std::vector<int32_t> rotated_members(int64_t size, int64_t per_node, int64_t part, int64_t parts) {
  const int64_t first = part * per_node / parts;
  std::vector<int32_t> members;
  for (int64_t node = 0; node < size; node += per_node)
    for (int64_t at = 0; at < per_node; ++at)
      members.push_back(static_cast<int32_t>(node + (first + at) % per_node));
  return members;
}

double rotated_seconds(double bytes, int64_t parts, int64_t key_heads, const RouteLinks& links) {
  return rotated_route_seconds(bytes, parts, key_heads, {}, links);
}

double rotated_route_seconds(double bytes, int64_t parts, int64_t key_heads, const Route& route,
                             const RouteLinks& links) {
  const int64_t largest = (key_heads + parts - 1) / parts;
  const double of_part = bytes * static_cast<double>(largest) / static_cast<double>(key_heads);
  const double x = static_cast<double>(route.proxies), p = static_cast<double>(route.pieces);
  double of_link = of_part / x;
  if (links.of_node > 0) of_link = std::max(of_link, bytes / static_cast<double>(links.of_node));
  const double crossing = links.between_byte_seconds * of_link + links.between_latency_seconds * p;
  const double all_inside =
      links.inside_byte_seconds * bytes + links.inside_latency_seconds * static_cast<double>(parts);
  if (route.proxies == 1) return std::max(crossing, all_inside);
  const double stage =
      links.inside_byte_seconds * of_part * (x - 1) / x + links.inside_latency_seconds * p;
  const double routed = (2 * stage + crossing) / p + (p - 1) / p * std::max(stage, crossing);
  return std::max(routed, all_inside);
}

int64_t best_rotation(double bytes, int64_t least, int64_t most, int64_t key_heads,
                      const RouteLinks& links) {
  int64_t best = least;
  for (int64_t parts = least + 1; parts <= most; ++parts)
    if (rotated_seconds(bytes, parts, key_heads, links) <
        rotated_seconds(bytes, best, key_heads, links))
      best = parts;
  return best;
}

double parallel_seconds(double bytes, int64_t neighbours, const RouteLinks& links) {
  const int64_t used = links.of_node == 0 ? neighbours : std::min(neighbours, links.of_node);
  const double of_link = bytes * static_cast<double>(neighbours) / static_cast<double>(used);
  return links.between_byte_seconds * of_link + links.between_latency_seconds;
}

std::vector<Piece> deal_pieces(std::span<const int64_t> message_bytes, int64_t links,
                               int64_t piece_bytes) {
  std::vector<Piece> pieces;
  int64_t next = 0;
  for (size_t message = 0; message < message_bytes.size(); ++message)
    for (int64_t at = 0; at < message_bytes[message]; at += piece_bytes)
      pieces.push_back({static_cast<int32_t>(message), static_cast<int32_t>(next++ % links), at,
                        std::min(piece_bytes, message_bytes[message] - at)});
  return pieces;
}

}  // namespace strait::sequence
