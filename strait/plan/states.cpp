#include "strait/plan/states.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <ranges>
#include <tuple>
#include <utility>

#include "strait/base/errors.h"
#include "strait/config/cluster_file.h"
#include "strait/plan/codecs.h"
#include "strait/plan/short_steps.h"
#include "strait/plan/stages.h"
#include "strait/threads/cores.h"
#include "strait/threads/team.h"
#include "strait/topology/mesh.h"
#include "strait/topology/positions.h"

namespace strait::plan {
namespace {

/// The divisors of a rank's share, ascending, whose micro-batches the order of the run takes, and
/// of whose micro-steps no more than `most_steps` are composed.
std::vector<int64_t> sizes_of(const Run& run, int64_t ranks, int64_t most_steps) {
  const int64_t own = run.train.micro_batch_size;
  // Rows of documents follow from it: more of them are no other batch.
  if (run.train.global_batch_tokens > 0) return {own};
  std::vector<int64_t> sizes;
  const int64_t share = run.train.global_batch_size / Mesh(run.mesh, ranks).data_ranks();
  if (!searches(run, "micro_batch_size")) {
    if (own == 0 || takes_micro_batches(run, share / own)) sizes.push_back(own);
    return sizes;
  }
  const int64_t visits = kMostVisits / std::max<int64_t>(run.model.shape.layers, 1);
  const int64_t most = std::min(most_steps, std::max<int64_t>(visits, 1));
  Run trial = run;
  for (int64_t steps = std::min(share, kMostMicroSteps); steps > 0; --steps) {
    if (share % steps != 0 || !takes_micro_batches(run, steps)) continue;
    trial.train.micro_batch_size = share / steps;
    if (composed_micro_steps(trial, ranks) <= most) sizes.push_back(share / steps);
  }
  return sizes;
}

/// What needs the least memory comes last.
std::vector<std::string> recomputes(const Run& run) {
  if (run.model.modules) return {run.train.recompute};  // the only one that they know
  if (!searches(run, "recompute")) return {run.train.recompute};
  std::vector<std::string> ways = {"none", "block"};
  if (run.model.shape.layers >= 2) ways.insert(ways.begin() + 1, "every:2");
  if (std::ranges::find(ways, run.train.recompute) == ways.end())
    ways.insert(ways.end() - 1, run.train.recompute);
  return ways;
}

/// Tries the micro-batches `sizes` of a run in this order. Activations grow with them, so behind
/// the first that does not fit only the last is tried, which may need no sums over micro-steps.
/// Those that the other keys of the run forbid are left out, as a placement is that they forbid.
SearchResult search_micro_batches(const Run& run, const Setting& setting,
                                  const std::vector<int64_t>& sizes) {
  SearchResult result;
  Rejection refused;
  for (size_t at = 0; at < sizes.size();) {
    Run trial = run;
    trial.train.micro_batch_size = sizes[at];
    size_t next = at + 1;
    try {
      Candidate candidate = estimate(trial, setting);
      if (!candidate.fits()) next = std::max(next, sizes.size() - 1);
      keep(std::move(candidate), run.placement.preset, static_cast<int64_t>(next - at), result);
    } catch (const UserError& error) {
      if (refused.count == 0) refused = refusal(run.placement.preset, error.what(), 0);
      ++refused.count;
    }
    at = next;
  }
  if (refused.count > 0) refuse(std::move(refused), result);
  return result;
}

/// A run of the search with a placement: of codecs that the search may not vary it has those that
/// the file writes or the file's own preset brings.
Run placed(Run run, const std::string& preset) {
  const bool own = preset == run.placement.preset;
  run.placement.preset = preset;
  write_key(run, "placement.preset");
  return own || searches(run, "codecs") ? run : without_codecs(std::move(run));
}

/// The fastest candidate of each placement once more, in codecs, where links make it wait.
std::vector<Run> in_codecs(const std::vector<SearchResult>& parts) {
  std::map<std::string, const Candidate*> fastest;
  for (const SearchResult& part : parts) {
    for (const Candidate& one : part.candidates) {
      const Candidate*& first = fastest[one.design.placement.preset];
      if (first == nullptr || one.simulated.seconds < first->simulated.seconds) first = &one;
    }
  }
  std::vector<Run> runs;
  for (const auto& [preset, one] : fastest)
    if (kAlike * (one->simulated.seconds - one->simulated.exposed_seconds) < one->simulated.seconds)
      std::ranges::move(with_codecs(one->design), std::back_inserter(runs));
  return runs;
}

/// A run with each way to recompute. Recomputing takes time and saves memory alone, so behind the
/// first way with which everything fits the others are not tried; where of the first nothing fits,
/// those between are tried only if something of the last does, which needs the least.
SearchResult search_recomputes(const Run& run, const Setting& setting,
                               const std::vector<int64_t>& sizes) {
  SearchResult result;
  const auto try_way = [&](const std::string& recompute) {
    Run trial = run;
    trial.train.recompute = recompute;
    SearchResult part = search_micro_batches(trial, setting, sizes);
    const bool fits = !part.candidates.empty();
    const bool all_fit = std::ranges::none_of(part.rejected, &Rejection::is_of_memory);
    add(std::move(part), result);
    return std::pair(fits, all_fit);
  };
  std::vector<std::string> ways = recomputes(run);
  const auto [first_fits, first_suffices] = try_way(ways.front());
  ways.erase(ways.begin());
  if (first_suffices || ways.empty()) return result;
  if (!first_fits) {
    const bool last_fits = try_way(ways.back()).first;
    ways.pop_back();
    if (!last_fits) return result;
  }
  for (const std::string& way : ways)
    if (try_way(way).second) break;
  return result;
}

constexpr int64_t kMostThreads = 16;  // each holds a program

}  // namespace

void on_all_cores(size_t count, const std::function<void(size_t)>& work) {
  std::vector<std::exception_ptr> thrown(count);
  std::atomic<size_t> next = 0;
  const auto threads = std::min({available_cores(), kMostThreads, static_cast<int64_t>(count)});
  run_team(static_cast<int>(threads), [&](int, int) {
    for (size_t at = next++; at < count; at = next++) {
      try {
        work(at);
      } catch (...) {
        thrown[at] = std::current_exception();
      }
    }
  });
  for (const std::exception_ptr& one : thrown)
    if (one) std::rethrow_exception(one);
}

Cluster positions_of_replica(const Run& run, int64_t ranks) {
  const Cluster cluster = resolve_cluster(run, ranks);
  const Mesh mesh(run.mesh, ranks);
  const strategy::Policy policy =
      strategy::resolve_policy(run, positions_of(cluster, mesh), mesh.data_ranks());
  return positions_of(cluster, mesh.with_replicas(policy.replicas));
}

std::vector<std::string> placements(const Run& run, int64_t ranks) {
  if (!searches(run, "placement")) return {run.placement.preset};
  const Cluster cluster = positions_of_replica(run, ranks);
  if (cluster.ranks == 1) return {"ddp"};  // all others give the same programs
  std::vector<std::string> names;
  for (const strategy::PlacementRow& row : strategy::placement_table())
    if (strategy::is_applicable(row, cluster, cluster.ranks)) names.push_back(row.name);
  return names;
}

Run typical(Run run, int64_t ranks) {
  run = leanest(std::move(run), ranks);
  const int64_t share = run.train.global_batch_size / Mesh(run.mesh, ranks).data_ranks();
  for (const int64_t size : sizes_of(run, ranks, kMostMicroStepsOfGrid))
    if (size > 0 && share / size >= 4 * run.mesh.axes.stage) run.train.micro_batch_size = size;
  return run;
}

Run leanest(Run run, int64_t ranks) {
  if (searches(run, "placement")) {
    const std::vector<std::string> names = placements(run, ranks);
    run.placement.preset = names.size() == 1 ? names.front() : "zero1";
    write_key(run, "placement.preset");
  }
  const std::vector<int64_t> sizes = sizes_of(run, ranks, kMostMicroStepsOfGrid);
  if (!sizes.empty()) run.train.micro_batch_size = sizes.front();
  return run;
}

void search_states(const Run& run, const Setting& setting, const Limits& limits,
                   SearchResult& result) {
  const std::vector<int64_t> sizes = sizes_of(run, setting.ranks, limits.most_micro_steps);
  const std::vector<std::string> presets =
      limits.presets.empty() ? placements(run, setting.ranks) : limits.presets;
  std::vector<SearchResult> parts(presets.size());
  on_all_cores(presets.size(), [&](size_t at) {
    parts[at] = search_recomputes(placed(run, presets[at]), setting, sizes);
  });
  const std::vector<Run> compressed =
      searches(run, "codecs") ? in_codecs(parts) : std::vector<Run>();
  parts.resize(presets.size() + compressed.size());
  on_all_cores(compressed.size(), [&](size_t at) {
    parts[presets.size() + at] =
        search_micro_batches(compressed[at], setting, {compressed[at].train.micro_batch_size});
  });
  for (SearchResult& part : parts) add(std::move(part), result);
}

void search_mesh(const Run& run, const Setting& setting, const Limits& limits,
                 SearchResult& result) {
  if (run.mesh.axes.stage == 1 || !searches(run, "pipeline"))
    return search_states(run, setting, limits, result);
  for (const Run& one : orders_of_stages(run)) search_states(one, setting, limits, result);
}

void search_fastest(const Trials& trials, const Setting& setting,
                    const std::function<std::string(const Run&)>& text,
                    const std::function<void(const Candidate&)>& go_on, SearchResult& result) {
  for (const Rejection& refused : trials.refused) refuse(refused, result);
  std::vector<Run> runs = trials.runs;
  std::erase_if(runs, [&](const Run& run) {
    const int64_t most = run.mesh.axes.stage > 1 ? kMostMicroStepsOfGrid : kMostMicroSteps;
    return composed_micro_steps(run, setting.ranks) > most;
  });
  std::vector<std::optional<Candidate>> found(runs.size());
  std::vector<std::string> reasons(runs.size());
  on_all_cores(runs.size(), [&](size_t at) {
    try {
      found[at] = estimate(runs[at], setting);
    } catch (const UserError& error) {  // what only a batch of the data tells
      reasons[at] = error.what();
    }
  });
  std::vector<Candidate> tried = trials.known;
  for (size_t at = 0; at < found.size(); ++at)
    if (found[at])
      tried.push_back(*std::move(found[at]));
    else
      refuse(refusal(text(runs[at]), reasons[at], 1), result);
  if (tried.empty()) return;
  const auto fastest = std::ranges::min_element(tried, {}, [](const Candidate& one) {
    return std::tuple(!one.fits(), one.simulated.seconds, one.memory.total());
  });
  go_on(*fastest);
  tried.erase(fastest);
  for (Candidate& other : tried) {
    const std::string family = other.design.placement.preset;
    keep(std::move(other), family, 1, result);
  }
}

}  // namespace strait::plan
