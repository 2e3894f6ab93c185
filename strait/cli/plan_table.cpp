#include "strait/cli/plan_table.h"

#include <fmt/format.h>

#include "strait/cli/plan_text.h"
#include "strait/plan/codecs.h"
#include "strait/plan/grids.h"
#include "strait/plan/stages.h"

namespace strait::cli {
namespace {

std::string heading(const Cluster& cluster) {
  return fmt::format(
      "{:>3}  {:<9} {:>11} {:>12} {:<9} {:>10} {:>9} {:>11} {:>6} {:>9} {:>14} {:>9}", "#",
      "placement", "micro-batch", "accumulation", "recompute", "step", "exposed", "tokens/s", "MFU",
      "sent", "over " + cluster.levels.back().name, "memory");
}

/// "  stage 2, interleaved 4"; nothing without stages.
std::string stages_text(const strategy::Design& design) {
  return design.mesh.axis("stage").size == 1 ? "" : "  " + plan::staging_text(design.run);
}

/// "  x 2, y 4"; nothing of no text.
std::string set_off(const std::string& text) { return text.empty() ? "" : "  " + text; }

/// "  sequence 4, ring", "  sequence 4, heads_ring 2", "  sequence 4, zeppelin auto"; nothing where
/// no ranks share sequences.
std::string sequence_text(const strategy::Design& design) {
  const int64_t sharers = design.mesh.axis("sequence").size;
  const std::string& engine = design.run.sequence.engine;
  if (sharers == 1) return "";
  const std::optional<int64_t> heads = plan::head_ranks(design);
  if (engine != "heads_ring" && (heads == 1 || engine == "heads"))
    return fmt::format("  sequence {}, {}", sharers, engine);
  return fmt::format("  sequence {}, {} {}", sharers, engine,
                     heads ? std::to_string(*heads) : "auto");
}

std::string line_of(const plan::Candidate& candidate, int64_t position) {
  const strategy::Design& design = candidate.design;
  const Ledger& traffic = candidate.simulated.traffic;
  const int64_t levels = static_cast<int64_t>(design.cluster.levels.size());
  int64_t sent = 0;
  for (int64_t level = 0; level < levels; ++level) sent += traffic.payload_bytes(level);
  return fmt::format(
      "{:>3}  {:<9} {:>11} {:>12} {:<9} {:>10} {:>7.1f} % {:>11.0f} {:>4.1f} % {:>9} {:>14} "
      "{:>9}{}{}{}{}",
      position, design.placement.preset, design.batch.micro_batch_size, design.batch.accumulation,
      design.run.train.recompute, seconds_text(candidate.simulated.seconds),
      100 * candidate.simulated.exposed_seconds / candidate.simulated.seconds,
      plan::tokens_per_second(candidate), 100 * plan::model_flops_utilization(candidate),
      bytes_text(static_cast<double>(sent)),
      bytes_text(static_cast<double>(traffic.payload_bytes(levels - 1))),
      bytes_text(static_cast<double>(candidate.memory.total())),
      set_off(plan::grid_text(design.run)), sequence_text(design), stages_text(design),
      set_off(plan::codecs_text(design.run)));
}

}  // namespace

std::string rejection_line(const plan::Rejection& rejection) {
  if (!rejection.is_of_memory())
    return fmt::format("left out: {}: {}", rejection.family, rejection.reason);
  return fmt::format("left out: {} x {}: needs {} per rank (most of it {}), has {}",
                     rejection.count, rejection.family,
                     bytes_text(static_cast<double>(rejection.needs_bytes)), rejection.where,
                     bytes_text(static_cast<double>(rejection.has_bytes)));
}

std::vector<std::string> plan_table(const plan::SearchResult& result, int64_t keep) {
  std::vector<std::string> lines;
  if (!result.candidates.empty()) {
    const Cluster& cluster = result.candidates.front().design.cluster;
    lines.push_back(heading(cluster));
    int64_t position = 0;
    for (const plan::Candidate& candidate : result.candidates)
      if (++position <= keep) lines.push_back(line_of(candidate, position));
    lines.push_back("figures: " + figures_text(cluster));
  }
  for (const plan::Rejection& rejection : result.rejected)
    lines.push_back(rejection_line(rejection));
  return lines;
}

}  // namespace strait::cli
