#include "strait/predict/predict.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace strait::predict {
namespace {

/// Over which any transfer takes less than a clock can tell.
constexpr double kUnlimitedBytesPerSecond = 1e24;

/// The row of a ledger for the operation, level and codec of another; empty where it has none.
Traffic like(const Traffic& other, const Ledger& ledger) {
  for (Traffic& row : ledger.rows())
    if (row.operation == other.operation && row.level == other.level && row.codec == other.codec)
      return std::move(row);
  return {other.operation, other.level, other.codec};
}

/// (stretch + idle * step) / steps, for every figure of a step; the sum may pass 64 bits.
class Mean {
 public:
  explicit Mean(const strategy::Round& round)
      : steps_(static_cast<double>(round.steps)), idle_(static_cast<double>(round.idle_steps)) {}

  void take(double& stretch, double step) const { stretch = (stretch + idle_ * step) / steps_; }
  void take(int64_t& stretch, int64_t step) const {
    stretch =
        std::llround((static_cast<double>(stretch) + idle_ * static_cast<double>(step)) / steps_);
  }
  void take(std::vector<int64_t>& stretch, const std::vector<int64_t>& step) const {
    for (size_t at = 0; at < stretch.size(); ++at) take(stretch[at], step[at]);
  }
  void take(Ledger& stretch, const Ledger& step) const {
    Ledger both = stretch, mean;
    both.merge(step);
    for (const Traffic& row : both.rows()) {
      Traffic once = like(row, stretch);
      const Traffic every = like(row, step);
      for (int64_t Traffic::*count :
           {&Traffic::payload_bytes, &Traffic::metadata_bytes, &Traffic::count})
        take(once.*count, every.*count);
      mean.add(once);
    }
    int64_t network_bytes = stretch.network_bytes();
    take(network_bytes, step.network_bytes());
    mean.add_network(network_bytes);
    stretch = std::move(mean);
  }

 private:
  double steps_, idle_;
};

sim::Result simulate_on(const Cluster& cluster, const strategy::Design& design,
                        std::vector<trace::Recorder>* recorders) {
  const strategy::Round& round = design.round;
  sim::Result result = sim::simulate(round.classes, cluster, recorders);
  if (round.steps == 1) return result;
  const sim::Result step = sim::simulate(design.steady(), cluster);
  const Mean mean(round);
  mean.take(result.seconds, step.seconds);
  mean.take(result.compute_seconds, step.compute_seconds);
  mean.take(result.exposed_seconds, step.exposed_seconds);
  mean.take(result.bubble_seconds, step.bubble_seconds);
  mean.take(result.level_bytes, step.level_bytes);
  mean.take(result.traffic, step.traffic);
  return result;
}

}  // namespace

sim::Result simulate(const strategy::Design& design, std::vector<trace::Recorder>* recorders) {
  return simulate_on(design.cluster, design, recorders);
}

double unlimited_seconds(const strategy::Design& design) {
  Cluster cluster = design.cluster;
  for (Level& level : cluster.levels) {
    level.bytes_per_second = kUnlimitedBytesPerSecond;
    level.latency_seconds = 0;
    level.processor_share = 0;
  }
  return simulate_on(cluster, design, nullptr).seconds;
}

int64_t bytes_in_flight(const strategy::Design& design) {
  const auto sent = [&](const std::string& kind) {
    return cost::price(design.programs.classes(kind), design.cluster).traffic.bytes();
  };
  int64_t most = 0;
  for (const program::Rule& rule : design.programs.rules)
    if (rule.adds() && rule.purpose == strategy::kForStep)
      for (const std::string& kind : rule.kinds) most = std::max(most, sent(kind));
  if (!design.policy.local_steps()) most = sent(strategy::kSteady);
  return most / design.batch.ranks;
}

cost::Cost price(const strategy::Design& design) {
  const strategy::Round& round = design.round;
  cost::Cost cost = cost::price(round.classes, design.cluster);
  if (round.steps == 1) return cost;
  const cost::Cost step = cost::price(design.steady(), design.cluster);
  const Mean mean(round);
  mean.take(cost.compute_seconds, step.compute_seconds);
  mean.take(cost.communication_seconds, step.communication_seconds);
  mean.take(cost.flops, step.flops);
  mean.take(cost.level_bytes, step.level_bytes);
  mean.take(cost.traffic, step.traffic);
  return cost;
}

std::vector<program::MemoryUse> peak_memories(const strategy::Design& design) {
  std::vector<program::MemoryUse> peaks = program::peak_memories(design.round.classes);
  const std::vector<program::MemoryUse> widest = program::peak_memories(design.widest);
  for (size_t one = 0; one < widest.size(); ++one)
    if (widest[one].total() > peaks[one].total()) peaks[one] = widest[one];
  return peaks;
}

program::MemoryUse peak_memory(const strategy::Design& design, int64_t rank) {
  const program::MemoryUse mean =
      program::peak_memory(program::class_of(design.round.classes, rank), rank);
  if (design.widest.empty()) return mean;
  const program::MemoryUse widest =
      program::peak_memory(program::class_of(design.widest, rank), rank);
  return widest.total() > mean.total() ? widest : mean;
}

}  // namespace strait::predict
