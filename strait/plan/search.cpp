#include "strait/plan/search.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <ranges>
#include <tuple>
#include <utility>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/config/check_chain.h"
#include "strait/config/cluster_file.h"
#include "strait/config/keys.h"
#include "strait/config/validate.h"
#include "strait/plan/codecs.h"
#include "strait/plan/grids.h"
#include "strait/plan/mixed.h"
#include "strait/plan/sequence_axis.h"
#include "strait/plan/short_steps.h"
#include "strait/plan/stages.h"
#include "strait/plan/trials.h"
#include "strait/shape/unet.h"
#include "strait/threads/cores.h"
#include "strait/threads/team.h"
#include "strait/topology/mesh.h"
#include "strait/topology/positions.h"

namespace strait::plan {
namespace {

/// Refuses what no candidate could mend, before any is tried: nothing would be enumerated
/// otherwise.
void require_candidates(const Run& run, int64_t ranks) {
  Run widest = run;
  if (searches(run, "micro_batch_size") && run.train.global_batch_tokens == 0)
    widest.train.micro_batch_size = 0;
  validate_run(widest, ranks);
}

/// What a placement sees: the ranks of one replica.
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

/// A simulated step replays each layer in each of its micro-steps, on a grid with sums inside it.
constexpr int64_t kMostMicroSteps = 4096, kMostVisits = 1 << 16;
constexpr int64_t kMostMicroStepsOfGrid = 256;

/// The divisors of a rank's share that need at most `most_steps` micro-steps, and no more visits
/// than that; ascending.
std::vector<int64_t> micro_batches(const Run& run, int64_t ranks, int64_t most_steps) {
  // Rows of documents follow from it: more of them are no other batch.
  if (!searches(run, "micro_batch_size") || run.train.global_batch_tokens > 0)
    return {run.train.micro_batch_size};
  std::vector<int64_t> sizes;
  const int64_t share = run.train.global_batch_size / Mesh(run.mesh, ranks).data_ranks();
  const int64_t visits = kMostVisits / std::max<int64_t>(run.model.shape.layers, 1);
  const int64_t most = std::min({share, most_steps, std::max<int64_t>(visits, 1)});
  for (int64_t steps = 1; steps <= most; ++steps)
    if (share % steps == 0) sizes.push_back(share / steps);
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

std::vector<std::string> recomputes(const Run& run) {
  if (run.model.modules) return {run.train.recompute};  // the only one that they know
  if (!searches(run, "recompute")) return {run.train.recompute};
  std::vector<std::string> ways = {"none", "block"};
  if (run.model.shape.layers >= 2) ways.insert(ways.begin() + 1, "every:2");
  if (std::ranges::find(ways, run.train.recompute) == ways.end())
    ways.push_back(run.train.recompute);
  return ways;
}

/// Those of the sizes whose micro-batches the order of a run takes.
std::vector<int64_t> fitting(const Run& run, int64_t ranks, std::vector<int64_t> sizes) {
  if (run.train.global_batch_tokens > 0) return sizes;
  const int64_t share = run.train.global_batch_size / Mesh(run.mesh, ranks).data_ranks();
  std::erase_if(sizes,
                [&](int64_t size) { return size > 0 && !takes_micro_batches(run, share / size); });
  return sizes;
}

/// Whether the run leaves it to the plan which ranks share blocks or sequences.
bool leaves_mesh_open(const Run& run) {
  const auto is_axis = [](const auto& key) { return key.first.starts_with("mesh.axes"); };
  return run.sync.policy == "every-step" && std::ranges::none_of(run.written, is_axis);
}

std::string largest_part(const program::MemoryUse& use) {
  const std::pair<int64_t, const char*> parts[] = {
      {use.weights, "weights"},         {use.gradients, "gradients"}, {use.optimizer, "optimizer"},
      {use.activations, "activations"}, {use.secondary, "secondary"}, {use.buffers, "buffers"}};
  return std::max_element(std::begin(parts), std::end(parts))->second;
}

/// Adds what a part of the search has found.
void add(SearchResult part, SearchResult& result) {
  result.enumerated += part.enumerated;
  std::ranges::move(part.candidates, std::back_inserter(result.candidates));
  for (Rejection& rejection : part.rejected) reject(std::move(rejection), result);
}

constexpr int64_t kMostThreads = 16;  // each holds a program

/// work(0) to work(count - 1) on all cores. Composing, pricing and simulating share nothing. Of
/// what is thrown the first, by number, is thrown on.
template <class Work>
void on_all_cores(size_t count, const Work& work) {
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
/// first way with which everything fits the others are not tried.
SearchResult search_recomputes(const Run& run, const Setting& setting,
                               const std::vector<int64_t>& sizes) {
  SearchResult result;
  for (const std::string& recompute : recomputes(run)) {
    Run trial = run;
    trial.train.recompute = recompute;
    SearchResult part = search_micro_batches(trial, setting, sizes);
    const bool all_fit = std::ranges::none_of(part.rejected, &Rejection::is_of_memory);
    add(std::move(part), result);
    if (all_fit) break;
  }
  return result;
}

/// Every placement, recomputation and micro-batch, with the mesh and the order of the run.
void search_states(const Run& run, const Setting& setting, int64_t most_steps,
                   SearchResult& result) {
  const std::vector<int64_t> sizes =
      fitting(run, setting.ranks, micro_batches(run, setting.ranks, most_steps));
  const std::vector<std::string> presets = placements(run, setting.ranks);
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

/// The same with every order that the stages of the run can take.
void search_mesh(const Run& run, const Setting& setting, int64_t most_steps, SearchResult& result) {
  if (run.mesh.axes.stage == 1 || !searches(run, "pipeline"))
    return search_states(run, setting, most_steps, result);
  for (const Run& one : orders_of_stages(run)) search_states(one, setting, most_steps, result);
}

/// What a mesh that the search chooses must pass.
auto requirement(int64_t ranks) {
  return [ranks](const Run& trial) { require_possible(trial, ranks); };
}

/// One candidate of every run. With the fastest of those that fit, or where none does with the one
/// that needs the least memory, `go_on` searches.
template <class Text, class GoOn>
void search_fastest(const Trials& trials, const Setting& setting, const Text& text,
                    const GoOn& go_on, SearchResult& result) {
  for (const Rejection& refused : trials.refused) refuse(refused, result);
  std::vector<std::optional<Candidate>> found(trials.runs.size());
  std::vector<std::string> reasons(trials.runs.size());
  on_all_cores(trials.runs.size(), [&](size_t at) {
    try {
      found[at] = estimate(trials.runs[at], setting);
    } catch (const UserError& error) {  // what only a batch of the data tells
      reasons[at] = error.what();
    }
  });
  std::vector<Candidate> tried;
  for (size_t at = 0; at < found.size(); ++at)
    if (found[at])
      tried.push_back(*std::move(found[at]));
    else
      refuse(refusal(text(trials.runs[at]), reasons[at], 1), result);
  if (tried.empty()) return;
  const auto fastest = std::ranges::min_element(tried, {}, [](const Candidate& one) {
    return std::tuple(!one.fits(), one.simulated.seconds, one.memory.total());
  });
  go_on(fastest->design.run);
  tried.erase(fastest);
  for (Candidate& other : tried) {
    const std::string family = other.design.placement.preset;
    keep(std::move(other), family, 1, result);
  }
}

/// The engines of `sharers` ranks, with the placement, the micro-batch and the recomputation of the
/// run file.
void search_engines(const Run& run, int64_t sharers, const Setting& setting, int64_t most_steps,
                    SearchResult& result) {
  search_fastest(
      share_sequences(run, sharers, requirement(setting.ranks)), setting, sharing_text,
      [&](const Run& one) { search_mesh(one, setting, most_steps, result); }, result);
}

constexpr size_t kMostGrids = 2;

/// The run, where it leaves that open, on grids of x and y. AxoNN's model knows those of
/// transformers; of a U-Net's all are composed.
void search_grids(const Run& run, const Setting& setting, SearchResult& result) {
  if (!searches(run, "mesh") || !leaves_mesh_open(run)) return;
  const auto go_on = [&](const Run& one) {
    search_mesh(one, setting, kMostMicroStepsOfGrid, result);
  };
  const auto require = requirement(setting.ranks);
  if (run.model.family == kUnetFamily)
    return search_fastest(grids_of_unet(run, setting.ranks, require), setting, grid_text, go_on,
                          result);
  if (is_chain(run)) return;
  Trials trials = quietest_grids(run, setting, kMostGrids, require);
  for (Rejection& refused : trials.refused) refuse(std::move(refused), result);
  std::ranges::for_each(trials.runs, go_on);
}

/// The nearest miss among what needs too much memory.
const Rejection* nearest_miss(const SearchResult& result) {
  const Rejection* nearest = nullptr;
  for (const Rejection& one : result.rejected)
    if (one.is_of_memory() && (nearest == nullptr || one.needs_bytes < nearest->needs_bytes))
      nearest = &one;
  return nearest;
}

constexpr int64_t kMostSharings = 2;

/// What a number of ranks that share sequences needs.
struct SharedNeed {
  int64_t sharers = 1, bytes = 0;
};

/// The fewest ranks behind `more` that could fit, if sharing saves as much of what is left as it
/// did from `less` to `more`; 0: however many share, it is too little. Which candidate misses least
/// may change, so a tenth of the memory is left for that.
int64_t next_sharers(const SharedNeed& less, const SharedNeed& more, int64_t has_bytes) {
  const auto inverse = [](const SharedNeed& need) { return 1 / static_cast<double>(need.sharers); };
  const double shared =
      static_cast<double>(less.bytes - more.bytes) / (inverse(less) - inverse(more));
  const double room = 1.1 * static_cast<double>(has_bytes) -
                      (static_cast<double>(more.bytes) - shared * inverse(more));
  if (room <= 0) return 0;
  return std::max(more.sharers + 1, static_cast<int64_t>(std::ceil(shared / room)));
}

/// The run, where it leaves that open, with sequences shared by the fewest ranks: every further one
/// sends more keys for the same work. `alone`: what the nearest miss without them needs; 0:
/// something fits.
void search_sequences(const Run& run, const Setting& setting, int64_t alone, SearchResult& result) {
  if (!searches(run, "sequence") || !leaves_mesh_open(run) || is_chain(run)) return;
  SharedNeed before{1, alone};
  int64_t fitting = 0, least = 2;
  for (int64_t sharers = 2; sharers <= setting.ranks && fitting < kMostSharings; ++sharers) {
    if (sharers < least || setting.ranks % sharers != 0) continue;
    SearchResult part;
    search_engines(run, sharers, setting, kMostMicroStepsOfGrid, part);
    const bool fits = !part.candidates.empty();
    if (fits) ++fitting;
    if (const Rejection* miss = fits ? nullptr : nearest_miss(part)) {
      const SharedNeed need{sharers, miss->needs_bytes};
      if (before.bytes > 0) least = next_sharers(before, need, miss->has_bytes);
      before = need;
    }
    add(std::move(part), result);
    if (least == 0) return;
  }
}

/// A run of stages as it is to be compared with other orders: with the state sharded but not the
/// weights, which every micro-batch needs, and with the largest micro-batches of which there are
/// enough that stages seldom idle, or else the smallest.
Run typical(Run run, int64_t ranks) {
  if (searches(run, "placement")) {
    const std::vector<std::string> names = placements(run, ranks);
    run.placement.preset = names.size() == 1 ? names.front() : "zero1";
    write_key(run, "placement.preset");
  }
  const std::vector<int64_t> sizes =
      fitting(run, ranks, micro_batches(run, ranks, kMostMicroStepsOfGrid));
  const int64_t share = run.train.global_batch_size / Mesh(run.mesh, ranks).data_ranks();
  const auto too_few = std::ranges::find_if(
      sizes, [&](int64_t size) { return size <= 0 || share / size < 4 * run.mesh.axes.stage; });
  if (!sizes.empty())
    run.train.micro_batch_size = too_few == sizes.begin() ? *too_few : *std::prev(too_few);
  return run;
}

constexpr int64_t kMostStagings = 2;

/// The run, where it leaves that open, cut into the fewest stages of which something fits, and into
/// one for each group that the outermost links join; with the order that is the fastest.
void search_stages(const Run& run, const Setting& setting, SearchResult& result) {
  if (!searches(run, "pipeline") || !leaves_mesh_open(run)) return;
  const StageNumbers numbers = numbers_of_stages(run, setting.ranks);
  int64_t fitting = 0;
  bool told = false;
  for (const int64_t stages : numbers.all) {
    if (fitting >= kMostStagings && stages != numbers.parts) continue;
    Trials trials = cut_into_stages(run, stages, requirement(setting.ranks));
    if (told) trials.refused.clear();  // most often for the same reason
    told = told || !trials.refused.empty();
    for (Run& one : trials.runs) one = typical(std::move(one), setting.ranks);
    const size_t before = result.candidates.size();
    search_fastest(
        trials, setting, staging_text,
        [&](const Run& one) { search_states(one, setting, kMostMicroStepsOfGrid, result); },
        result);
    if (result.candidates.size() > before) ++fitting;
  }
}

constexpr size_t kMostMixtures = 8;
constexpr int64_t kMostFittingMixtures = 2;

/// A mixture with every recomputation and micro-batch, with the placement that it has: programs of
/// many stages take long to compose.
void search_mixture(const Run& run, const Setting& setting, SearchResult& result) {
  Run placed = run;
  std::erase(placed.plan.search, "placement");
  const size_t before = result.candidates.size();
  search_states(placed, setting, kMostMicroStepsOfGrid, result);
  for (size_t at = before; at < result.candidates.size(); ++at)
    result.candidates[at].design.run.plan = run.plan;
}

/// The run, where it leaves that open, with stages on a grid, the first of which something fits;
/// each with the order that is the fastest.
void search_mixtures(const Run& run, const Setting& setting, SearchResult& result) {
  if (!searches(run, "mesh") || !searches(run, "pipeline") || !leaves_mesh_open(run)) return;
  if (run.model.family == kUnetFamily || is_chain(run)) return;
  const auto require = requirement(setting.ranks);
  int64_t fitting = 0;
  for (const Run& mixed : stages_on_grids(run, setting, kMostMixtures, require)) {
    if (fitting == kMostFittingMixtures) return;
    const size_t before = result.candidates.size();
    Trials trials = cut_into_stages(mixed, mixed.mesh.axes.stage, require);
    for (Run& one : trials.runs) one = typical(std::move(one), setting.ranks);
    search_fastest(
        trials, setting, staging_text,
        [&](const Run& one) { search_mixture(one, setting, result); }, result);
    if (result.candidates.size() > before) ++fitting;
  }
}

/// The run on the mesh of its file.
void search_own_mesh(const Run& run, const Setting& setting, SearchResult& result) {
  const int64_t sharers = run.mesh.axes.sequence;
  if (sharers > 1 && searches(run, "sequence"))
    search_engines(run, sharers, setting, kMostMicroSteps, result);
  else
    search_mesh(run, setting, kMostMicroSteps, result);
}

/// The fastest first, of equals the smallest; of those that no measurement tells from the fastest
/// those with the fewest codecs, and of these the smallest, too.
void put_in_order(std::vector<Candidate>& candidates) {
  const auto bytes = [](const Candidate& candidate) { return candidate.memory.total(); };
  std::ranges::stable_sort(candidates, {}, [&](const Candidate& candidate) {
    return std::pair(candidate.simulated.seconds, bytes(candidate));
  });
  const auto slower = std::ranges::find_if(candidates, [&](const Candidate& candidate) {
    return candidate.simulated.seconds > kAlike * candidates.front().simulated.seconds;
  });
  std::ranges::stable_sort(candidates.begin(), slower, {}, [&](const Candidate& candidate) {
    return std::pair(compressed_kinds(candidate.design), bytes(candidate));
  });
}

/// Puts them in order, the first `keep` of them simulated as a whole.
void complete(std::vector<Candidate>& candidates, const Setting& setting, int64_t keep) {
  for (;;) {
    put_in_order(candidates);
    std::vector<Candidate*> told;
    for (Candidate& one : candidates | std::views::take(std::max<int64_t>(keep, 1)))
      if (one.told) told.push_back(&one);
    if (told.empty()) return;
    on_all_cores(told.size(),
                 [&](size_t at) { *told[at] = evaluate(told[at]->design.run, setting); });
  }
}

bool was_tried(const SearchResult& result) {
  return !result.candidates.empty() ||
         std::ranges::any_of(result.rejected, &Rejection::is_of_memory);
}

}  // namespace

void reject(Rejection rejection, SearchResult& result) {
  const auto known = std::ranges::find_if(result.rejected, [&](const Rejection& one) {
    return one.reason == rejection.reason && one.family == rejection.family;
  });
  if (known == result.rejected.end()) return result.rejected.push_back(std::move(rejection));
  rejection.count += known->count;
  const bool nearer = rejection.needs_bytes < known->needs_bytes;
  known->count = rejection.count;
  if (nearer) *known = std::move(rejection);
}

void refuse(Rejection refused, SearchResult& result) {
  result.enumerated += refused.count;
  reject(std::move(refused), result);
}

void keep(Candidate candidate, const std::string& family, int64_t count, SearchResult& result) {
  result.enumerated += count;
  if (candidate.fits()) return result.candidates.push_back(std::move(candidate));
  Run run = candidate.design.run;
  run.train.micro_batch_size = candidate.design.batch.micro_batch_size;  // which 0 leaves open
  reject({family, "memory", count, candidate.memory.total(), candidate.has_bytes(),
          largest_part(candidate.memory), candidate_text(run)},
         result);
}

void require_possible(const Run& run, int64_t ranks) {
  require_candidates(run, ranks);
  positions_of_replica(run, ranks);
}

SearchResult search(const Run& run, int64_t ranks, int64_t vocabulary, const Corpus* corpus,
                    const Watch& watch) {
  const double began = now_seconds();
  const Setting setting{ranks, vocabulary, corpus, watch};
  SearchResult result;
  std::exception_ptr refused;
  try {
    require_candidates(run, ranks);
  } catch (const UserError& error) {  // which ranks that share something may mend
    refused = std::current_exception();
    refuse(refusal("mesh of the run file", error.what(), 1), result);
  }
  if (!refused) search_own_mesh(run, setting, result);
  const Rejection* miss = result.candidates.empty() ? nearest_miss(result) : nullptr;
  const int64_t needs_alone = miss ? miss->needs_bytes : 0;
  search_grids(run, setting, result);
  search_sequences(run, setting, needs_alone, result);
  search_stages(run, setting, result);
  search_mixtures(run, setting, result);
  if (!was_tried(result)) {
    if (refused) std::rethrow_exception(refused);
    evaluate(run, setting);  // throws what the run file is refused with
    throw InternalError("a valid run has at least one candidate");
  }
  complete(result.candidates, setting, run.plan.keep);
  result.wall_seconds = now_seconds() - began;
  return result;
}

namespace {

/// Known of what does not fit alone.
template <class Value>
Json of_memory(const Rejection& rejection, const Value& value) {
  return rejection.is_of_memory() ? Json(value) : Json();
}

}  // namespace

Json search_json(const SearchResult& result, int64_t ranks, int64_t keep,
                 const std::string& run_file) {
  Json candidates = Json::array();
  double bound = 0;
  for (size_t i = 0; i < result.candidates.size(); ++i) {
    if (i == 0 || result.candidates[i].bound_seconds < bound)
      bound = result.candidates[i].bound_seconds;
    if (static_cast<int64_t>(i) < keep)
      candidates.push_back(candidate_json(result.candidates[i], static_cast<int64_t>(i) + 1));
  }
  Json rejected = Json::array();
  for (const Rejection& r : result.rejected)
    rejected.push_back(Json::object({{"family", r.family},
                                     {"reason", r.reason},
                                     {"count", r.count},
                                     {"needs_bytes", of_memory(r, r.needs_bytes)},
                                     {"has_bytes", of_memory(r, r.has_bytes)},
                                     {"where", of_memory(r, r.where)}}));
  return Json::object({{"ranks", ranks},
                       {"enumerated", result.enumerated},
                       {"feasible", static_cast<int64_t>(result.candidates.size())},
                       {"wall_seconds", result.wall_seconds},
                       {"bound_seconds", result.candidates.empty() ? Json() : Json(bound)},
                       {"run_file", run_file.empty() ? Json() : Json(run_file)},
                       {"rejected", rejected},
                       {"candidates", candidates}});
}

}  // namespace strait::plan
