#include "strait/collective/choose.h"

#include <algorithm>
#include <cstdlib>

#include "strait/collective/nesting.h"

namespace strait::collective {

Spread spread_of(const Cluster& cluster, const std::vector<int64_t>& members) {
  Spread spread;
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    const int64_t size = cluster.group_size(static_cast<int64_t>(level));
    int64_t most = 0, run = 0;
    for (size_t at = 0; at < members.size(); ++at) {
      run = at > 0 && members[at] / size == members[at - 1] / size ? run + 1 : 1;
      most = std::max(most, run);
    }
    spread.push_back(most);
  }
  return spread;
}

namespace {

/// Exchanges one after another.
double phases(Operation operation) { return operation == Operation::kAllReduce ? 2 : 1; }

/// Members whose receiver, `distance` behind them, lies in another group of `within`.
double leaving(double members, double within, double distance) {
  const double inside =
      std::max(0.0, within - distance) + std::max(0.0, within - members + distance);
  return members / within * (within - inside);
}

}  // namespace

std::vector<double> relative_traffic(Operation operation, Algorithm algorithm, const Spread& spread,
                                     int64_t skipped) {
  const double members = static_cast<double>(spread.back());
  std::vector<double> traffic;
  double below = 1;
  for (const int64_t within : spread) {
    const double here = static_cast<double>(within);
    double elements =
        algorithm == Algorithm::kHierarchical ? members / below - members / here : here - below;
    const bool pairwise = operation == Operation::kSend || operation == Operation::kReceive;
    if (operation == Operation::kShift) {
      const double distance = static_cast<double>(skipped) + 1;
      elements = leaving(members, below, distance) - leaving(members, here, distance);
    }
    if (operation == Operation::kBarrier || pairwise) elements = 0;
    traffic.push_back(phases(operation) * elements);
    below = here;
  }
  return traffic;
}

double transfer_seconds(Operation operation, Algorithm algorithm, double vector_bytes,
                        const Spread& spread, const Cluster& cluster) {
  const double members = static_cast<double>(spread.back());
  if (members <= 1) return 0;
  const std::vector<double> traffic = relative_traffic(operation, algorithm, spread);
  double slowest = 0, sum = 0, latency = 0, latencies = 0, below = 1;
  const bool nested = algorithm == Algorithm::kHierarchical;
  for (size_t l = 0; l < spread.size(); ++l) {
    const double here = static_cast<double>(spread[l]);
    if (here > below) {
      const Level& level = cluster.levels[l];
      // What one group of the level below takes in, for every group of ours that has members in it.
      const double ranks_below =
          l == 0 ? 1 : static_cast<double>(cluster.group_size(static_cast<int64_t>(l) - 1));
      const double taken = operation == Operation::kShift ? 1 : traffic[l] * (below / members);
      const double bytes = vector_bytes * taken * (ranks_below / below);
      const double seconds = bytes / (level.bytes_per_second * static_cast<double>(level.links));
      slowest = std::max(slowest, seconds);
      sum += seconds;
      latency = std::max(latency, level.latency_seconds);
      latencies += level.latency_seconds;
    }
    below = here;
  }
  if (!nested) return slowest + phases(operation) * latency;
  const double pieces = static_cast<double>(pieces_of(static_cast<int64_t>(vector_bytes)));
  return slowest + (sum - slowest) / pieces + phases(operation) * latencies +
         (pieces - 1) * latency;
}

double late_seconds(const Level& level) {
  constexpr double kLate = 1e-3;
  return level.processor_share > 0 ? kLate : 0;
}

double late_seconds(Operation operation, const Spread& spread, const Cluster& cluster) {
  double late = 0;
  int64_t below = 1;
  for (size_t l = 0; l < spread.size(); below = spread[l++])
    if (spread[l] > below) late = std::max(late, late_seconds(cluster.levels[l]));
  return phases(operation) * late;
}

double lone_message_seconds(double bytes, const Level& level) {
  return level.latency_seconds + bytes / level.bytes_per_second;
}

double message_seconds(double bytes, const Hop& hop, const Cluster& cluster) {
  const int64_t crossed = cluster.level_between(hop.from, hop.to);
  const Level& level = cluster.levels[crossed];
  const int64_t below = crossed == 0 ? 1 : cluster.group_size(crossed - 1);
  const int64_t along = std::abs(hop.to - hop.from);
  const int64_t leaving = std::min({along, std::max<int64_t>(1, hop.ranks - along), below});
  const double waits = static_cast<double>(leaving) / static_cast<double>(level.links);
  return lone_message_seconds(bytes * std::max(1.0, waits), level);
}

int64_t pieces_of(int64_t vector_bytes) {
  constexpr int64_t kPieceBytes = int64_t{1} << 20, kMost = 8;
  return std::clamp<int64_t>(vector_bytes / kPieceBytes, 1, kMost);
}

Algorithm choose(Operation operation, double vector_bytes, const Spread& spread,
                 const Cluster& cluster) {
  if (!has_form(operation, Algorithm::kHierarchical)) return Algorithm::kDirect;
  const Operation decisive =
      operation == Operation::kAllReduce ? Operation::kReduceScatter : operation;
  const int64_t members = spread.back();
  const bool nested = std::any_of(spread.begin(), spread.end(),
                                  [&](int64_t within) { return within > 1 && within < members; });
  if (!nested) return Algorithm::kDirect;
  const double direct =
      transfer_seconds(decisive, Algorithm::kDirect, vector_bytes, spread, cluster);
  const double hierarchical =
      transfer_seconds(decisive, Algorithm::kHierarchical, vector_bytes, spread, cluster);
  return hierarchical < direct ? Algorithm::kHierarchical : Algorithm::kDirect;
}

void choose_form(Request& request, int64_t vector_bytes, const Cluster& cluster,
                 const std::vector<int64_t>& members) {
  request.algorithm = choose(request.operation, static_cast<double>(vector_bytes),
                             spread_of(cluster, members), cluster);
  if (request.algorithm == Algorithm::kHierarchical)
    choose_hierarchical(request, vector_bytes, cluster, members);
}

void choose_hierarchical(Request& request, int64_t vector_bytes, const Cluster& cluster,
                         const std::vector<int64_t>& members) {
  request.algorithm = Algorithm::kHierarchical;
  request.nest = nest_of(cluster, members);
  request.pieces = pieces_of(vector_bytes);
}

}  // namespace strait::collective
