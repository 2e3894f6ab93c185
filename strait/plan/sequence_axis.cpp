#include "strait/plan/sequence_axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "strait/base/errors.h"
#include "strait/config/cluster_file.h"
#include "strait/topology/cluster.h"

namespace strait::plan {
namespace {

struct Engine {
  std::string name;
  std::string head_ranks = "0";
};

/// Heads inside rings in every way that neither a ring nor heads are; for plans as each batch is
/// cheapest, where a slower level is between such runs than inside.
std::vector<Engine> engines(const Run& run, int64_t sharers, int64_t ranks) {
  if (run.is_set("sequence.engine")) return {{run.sequence.engine, run.sequence.head_ranks}};
  std::vector<Engine> all = {{"ring"}, {"gathered"}, {"heads"}};
  std::vector<int64_t> runs;
  const int64_t common = std::gcd(sharers, run.model.shape.kv_heads / run.mesh.axes.x);
  for (int64_t heads = 2; heads < sharers; ++heads)
    if (common % heads == 0) runs.push_back(heads);
  for (const int64_t heads : runs) all.push_back({"heads_ring", std::to_string(heads)});
  if (run.train.global_batch_tokens == 0) return all;
  const Cluster cluster = resolve_cluster(run, ranks);
  const int64_t stride = run.mesh.axes.x * run.mesh.axes.y * run.mesh.axes.z;
  const auto level = [&](int64_t count) { return cluster.level_between(0, (count - 1) * stride); };
  const bool exchanges =
      std::ranges::any_of(runs, [&](int64_t heads) { return level(heads) < level(sharers); });
  all.push_back({"zeppelin", exchanges ? "auto" : "0"});
  return all;
}

}  // namespace

std::string sharing_text(const Run& run) {
  const std::string& heads = run.sequence.head_ranks;
  return fmt::format("sequence {}, {}{}", run.mesh.axes.sequence, run.sequence.engine,
                     heads != "0" ? " " + heads : "");
}

Trials share_sequences(const Run& run, int64_t sharers, int64_t ranks, const Require& require) {
  Trials shared;
  for (const Engine& engine : engines(run, sharers, ranks)) {
    Run trial = run;
    trial.mesh.axes.sequence = sharers;
    trial.sequence.engine = engine.name;
    trial.sequence.head_ranks = engine.head_ranks;
    write_key(trial, "mesh.axes.sequence");
    write_key(trial, "sequence.engine");
    if (engine.head_ranks != "0") write_key(trial, "sequence.head_ranks");
    try {
      require(trial);
      shared.runs.push_back(std::move(trial));
    } catch (const UserError& error) {
      shared.refused.push_back(refusal(sharing_text(trial), error.what(), 1));
    }
  }
  const auto same = [&](const Rejection& one) {
    return one.reason == shared.refused.front().reason;
  };
  if (shared.runs.empty() && std::ranges::all_of(shared.refused, same))
    shared.refused = {refusal(fmt::format("sequence {}", sharers), shared.refused.front().reason,
                              std::ssize(shared.refused))};
  return shared;
}

}  // namespace strait::plan
