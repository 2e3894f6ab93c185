#include "strait/plan/policies.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/config/cluster_file.h"
#include "strait/config/keys.h"
#include "strait/plan/codecs.h"
#include "strait/plan/trials.h"
#include "strait/predict/predict.h"
#include "strait/shape/shape.h"
#include "strait/topology/mesh.h"
#include "strait/topology/positions.h"

namespace strait::plan {
namespace {

constexpr const char* kFourBits = "e3m0/64";

constexpr PolicyRow kPolicies[] = {
    // policy, period, delay, eager, codec
    {"every-step", 1, Delay::kNone, false, "none"},
    {"streaming-diloco", 30, Delay::kOneStep, false, "none"},
    {"streaming-diloco", 30, Delay::kOneStep, false, kFourBits},
    {"streaming-diloco", 30, Delay::kMostSteps, false, kFourBits},
    {"diloco", 30, Delay::kNone, false, "none"},
    {"diloco", 30, Delay::kNone, false, kFourBits},
    {"diloco", 30, Delay::kOneRound, true, "none"},
    {"diloco", 30, Delay::kOneRound, true, kFourBits},
    {"co2", 12, Delay::kOneRound, false, "none"},
    {"co2", 48, Delay::kOneRound, false, "none"},
    {"streaming-diloco", 100, Delay::kOneStep, false, "none"},
    {"streaming-diloco", 100, Delay::kOneStep, false, kFourBits},
    {"streaming-diloco", 100, Delay::kMostSteps, false, kFourBits},
    {"diloco", 100, Delay::kNone, false, kFourBits},
    {"diloco", 100, Delay::kOneRound, true, kFourBits},
    {"diloco", 500, Delay::kNone, false, "none"},
    {"streaming-diloco", 500, Delay::kMostSteps, false, kFourBits},
};

constexpr int64_t kLocalPolicies = std::ssize(kPolicies) - 1;

std::string replica_text(const std::string& replica) {
  return fmt::format("sync.replica = \"{}\"", replica);
}

/// "diloco, eager, period 30, e3m0/64, sync.replica = "pair"".
std::string row_text(const PolicyRow& row, const std::string& replica) {
  const std::string codec = row.codec;
  return fmt::format("{}{}, period {}{}, {}", row.policy, row.eager ? ", eager" : "", row.period,
                     codec == "none" ? "" : ", " + codec, replica_text(replica));
}

bool is_every_step(const PolicyRow& row) { return std::string(row.policy) == "every-step"; }

/// The file's [sync] without a policy.
void clear_policy(Run& run) {
  run.sync = SyncOptions();
  std::erase_if(run.written, [](const auto& entry) { return entry.first.starts_with("sync."); });
}

strategy::Policy policy_of(const Run& run, int64_t ranks) {
  const Mesh mesh(run.mesh, ranks);
  return strategy::resolve_policy(run, positions_of(resolve_cluster(run, ranks), mesh),
                                  mesh.data_ranks());
}

int64_t most_delay(const Run& run, int64_t ranks) {
  const strategy::Policy policy = policy_of(run, ranks);
  return policy.period / policy.fragments - 1;
}

/// The run with the policy of a row.
Run with_policy(Run run, const PolicyRow& row, const std::string& replica, int64_t ranks) {
  clear_policy(run);
  if (is_every_step(row)) return run;
  SyncOptions& sync = run.sync;
  choose(run, "sync.policy", sync.policy, std::string(row.policy));
  choose(run, "sync.replica", sync.replica, replica);
  choose(run, "sync.rounds.period_steps", sync.rounds.period_steps, row.period);
  choose(run, "sync.outer.codec", sync.outer.codec, std::string(row.codec));
  if (row.eager) choose(run, "sync.rounds.eager", sync.rounds.eager, true);
  int64_t delay = 0;
  switch (row.delay) {
    case Delay::kNone:
    case Delay::kOneStep:
      return run;  // as the policy's default
    case Delay::kMostSteps:
      delay = most_delay(run, ranks);
      break;
    case Delay::kOneRound:
      delay = row.period;
      break;
  }
  choose(run, "sync.rounds.delay_steps", sync.rounds.delay_steps, delay);
  return run;
}

/// The outer optimizer is that of the figure which says what the policy costs.
void choose_outer(Run& run, const Setting& setting) {
  const strategy::Policy policy = policy_of(run, setting.ranks);
  const auto parameters =
      static_cast<double>(model_shape(run.model, setting.vocabulary).parameters());
  const std::optional<QualityCost> cost = quality_of(policy, parameters);
  if (!policy.local_steps() || !cost || !cost->known.outer) return;
  const OuterKeys& keys = *cost->known.outer;
  SyncOuter& outer = run.sync.outer;
  choose(run, "sync.outer.learning_rate", outer.learning_rate, keys.learning_rate);
  choose(run, "sync.outer.momentum", outer.momentum, keys.momentum);
  choose(run, "sync.outer.clip", outer.clip, keys.clip);
}

[[noreturn]] void refuse_target(const Run& run, const std::string& why,
                                const std::string& nearest) {
  refuse_key(run, "plan.utilization",
             fmt::format("plan.utilization = {} cannot take effect: {}; the nearest valid choice "
                         "is {}",
                         run.plan.utilization, why, nearest));
}

void require_free_policies(const Run& run, int64_t ranks) {
  if (!searches(run, "sync"))
    refuse_target(run, "plan.search does not name \"sync\", so no policy may vary",
                  "plan.utilization = 0, or \"sync\" in plan.search");
  const Run defaults;
  for (const Key& key : run_keys())
    if (key.name.starts_with("sync.") && key.name != "sync.replica" &&
        !same_value(key, run, defaults))
      refuse_target(run, fmt::format("{} is written, and the policy varies", key.name),
                    fmt::format("plan.utilization = 0, or no {}", key.name));
  if (Mesh(run.mesh, ranks).data_ranks() == 1)
    refuse_target(run, "one data rank has no other to agree with",
                  "plan.utilization = 0, or more ranks");
}

/// What a replica may be: what the file says, or one rank and the groups of each inner level.
std::vector<std::string> replica_spans(const Run& run, int64_t ranks) {
  if (run.is_set("sync.replica")) return {run.sync.replica};
  const Mesh mesh(run.mesh, ranks);
  const Cluster positions = positions_of(resolve_cluster(run, ranks), mesh);
  std::vector<std::string> spans = {"none"};
  for (size_t level = 0; level + 1 < positions.levels.size(); ++level) {
    const int64_t size = positions.group_size(static_cast<int64_t>(level));
    if (size > 1 && size < mesh.data_ranks()) spans.push_back(positions.levels[level].name);
  }
  return spans;
}

/// Those kinds of replicas that can be; refuses the target where none can.
std::vector<std::string> possible_replicas(const Run& run, int64_t ranks, SearchResult& result) {
  std::vector<std::string> possible;
  std::string why;
  for (const std::string& replica : replica_spans(run, ranks)) {
    try {
      require_possible(with_policy(run, kPolicies[1], replica, ranks), ranks);
      possible.push_back(replica);
    } catch (const UserError& error) {
      why = error.what();
      refuse(refusal(replica_text(replica), why, kLocalPolicies), result);
    }
  }
  if (possible.empty())
    refuse_target(run, "no policy of local steps is possible: " + why, "plan.utilization = 0");
  return possible;
}

void add_figures(Candidate& candidate) {
  const strategy::Design& design = candidate.design;
  // Codecs inside a replica are not what a policy costs.
  const bool codecs = !design.policy.local_steps() && compresses(design);
  strategy::Policy policy = design.policy;
  if (codecs) policy.replicas = design.mesh.data_ranks();
  PolicyFigures figures;
  figures.utilization = predict::unlimited_seconds(design) / candidate.simulated.seconds;
  figures.peak_bytes_in_flight = predict::bytes_in_flight(design);
  figures.quality = quality_of(policy, static_cast<double>(design.shape.parameters()), codecs);
  candidate.policy = std::move(figures);
}

/// The fastest candidates of `like` for one kind of replica, and why others were left out.
std::vector<Candidate> searched(Run run, const PolicyRow& like, const std::string& replica,
                                const Setting& setting, bool codecs, SearchResult& result) {
  const PlanOptions options = run.plan;
  if (!codecs) std::erase(run.plan.search, "codecs");
  SearchResult found = search(with_policy(std::move(run), like, replica, setting.ranks),
                              setting.ranks, setting.vocabulary, setting.corpus, setting.watch);
  result.enumerated += found.enumerated;
  for (Rejection& rejection : found.rejected) reject(std::move(rejection), result);
  for (Candidate& candidate : found.candidates) candidate.design.run.plan = options;
  return std::move(found.candidates);
}

/// Adds a row to the result.
void add_row(const Run& best, const PolicyRow& row, const std::string& replica,
             const Setting& setting, SearchResult& result) {
  Run run = with_policy(best, row, replica, setting.ranks);
  choose_outer(run, setting);
  Candidate candidate = evaluate(run, setting);
  if (candidate.fits()) add_figures(candidate);
  keep(std::move(candidate), row_text(row, replica), 1, result);
}

/// Adds the row of every step.
void add_every_step(const Run& run, const Setting& setting, SearchResult& result) {
  const auto placed = searched(run, kPolicies[0], "", setting, false, result);
  if (!placed.empty()) add_row(placed.front().design.run, kPolicies[0], "", setting, result);
}

/// Adds the others for one kind of replica. Their cost in loss is that of the policy, so codecs are
/// those of the file. What cannot be is left out.
void add_local_steps(const Run& run, const std::string& replica, const Setting& setting,
                     SearchResult& result) {
  std::vector<Candidate> placed;
  try {
    placed = searched(run, kPolicies[1], replica, setting, false, result);
  } catch (const UserError& error) {
    refuse(refusal(replica_text(replica), error.what(), kLocalPolicies), result);
  }
  if (placed.empty()) return;
  for (const PolicyRow& row : kPolicies) {
    if (is_every_step(row)) continue;
    if (row.period > run.train.steps) {
      refuse(refusal(fmt::format("rounds of {} steps", row.period),
                     fmt::format("none ends in train.steps = {}", run.train.steps), 1),
             result);
      continue;
    }
    try {
      add_row(placed.front().design.run, row, replica, setting, result);
    } catch (const UserError& error) {
      refuse(refusal(row_text(row, replica), error.what(), 1), result);
    }
  }
}

/// Adds the fastest run whose every step sends its numbers in codecs.
void add_codecs(const Run& run, const Setting& setting, SearchResult& result) {
  for (Candidate& candidate : searched(run, kPolicies[0], "", setting, true, result)) {
    if (!compresses(candidate.design)) continue;
    add_figures(candidate);
    result.candidates.push_back(std::move(candidate));
    return;
  }
}

/// In this order: whether the cost in loss is known, whether for rounds as long and replicas as
/// many, the nats, and how far from what was measured. Better than the baseline counts as equal.
std::tuple<bool, bool, double, double> cost_in_loss(const Candidate& candidate) {
  const std::optional<QualityCost>& cost = candidate.policy->quality;
  if (!cost) return {true, true, 0, 0};
  const bool rounds = candidate.design.policy.local_steps();
  return {false, cost->extrapolated, std::max(0.0, cost->known.gap_nats),
          rounds ? cost->distance : 0};
}

bool is_better(const Candidate& a, const Candidate& b) {
  if (reaches_target(a) != reaches_target(b)) return reaches_target(a);
  if (!reaches_target(a)) return a.policy->utilization > b.policy->utilization;
  return cost_in_loss(a) < cost_in_loss(b);
}

}  // namespace

std::span<const PolicyRow> policy_table() { return kPolicies; }

bool searches_policies(const Run& run) { return run.plan.utilization > 0; }

bool reaches_target(const Candidate& candidate) {
  return candidate.policy->utilization >= candidate.design.run.plan.utilization;
}

SearchResult search_policies(const Run& run, int64_t ranks, int64_t vocabulary,
                             const Watch& watch) {
  const double began = now_seconds();
  require_free_policies(run, ranks);
  const Setting setting{ranks, vocabulary, nullptr, watch};
  SearchResult result;
  const std::vector<std::string> replicas = possible_replicas(run, ranks, result);
  add_every_step(run, setting, result);
  if (searches(run, "codecs")) add_codecs(run, setting, result);
  for (const std::string& replica : replicas) add_local_steps(run, replica, setting, result);
  std::ranges::stable_sort(result.candidates, is_better);
  result.wall_seconds = now_seconds() - began;
  return result;
}

}  // namespace strait::plan
