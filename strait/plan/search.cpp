#include "strait/plan/search.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <limits>
#include <map>
#include <ranges>
#include <utility>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/config/check_chain.h"
#include "strait/config/validate.h"
#include "strait/plan/codecs.h"
#include "strait/plan/grids.h"
#include "strait/plan/mixed.h"
#include "strait/plan/sequence_axis.h"
#include "strait/plan/short_steps.h"
#include "strait/plan/stages.h"
#include "strait/plan/states.h"
#include "strait/plan/trials.h"
#include "strait/shape/unet.h"

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

/// Whether the run leaves it to the plan which ranks share blocks or sequences.
bool leaves_mesh_open(const Run& run) {
  const auto is_axis = [](const auto& key) { return key.first.starts_with("mesh.axes"); };
  return run.sync.policy == "every-step" && std::ranges::none_of(run.written, is_axis);
}

/// What a mesh that the search chooses must pass.
auto requirement(int64_t ranks) {
  return [ranks](const Run& trial) { require_possible(trial, ranks); };
}

constexpr size_t kMostGrids = 2;

/// The run, where it leaves that open, on grids of x and y. AxoNN's model knows those of
/// transformers; of a U-Net's all are composed.
void search_grids(const Run& run, const Setting& setting, SearchResult& result) {
  if (!searches(run, "mesh") || !leaves_mesh_open(run)) return;
  const auto go_on = [&](const Run& one) {
    search_mesh(one, setting, {kMostMicroStepsOfGrid}, result);
  };
  const auto require = requirement(setting.ranks);
  if (run.model.family == kUnetFamily)
    return search_fastest(
        grids_of_unet(run, setting.ranks, require), setting, grid_text,
        [&](const Candidate& one) { go_on(one.design.run); }, result);
  if (is_chain(run)) return;
  Trials trials = quietest_grids(run, setting, kMostGrids, require);
  for (Rejection& refused : trials.refused) refuse(std::move(refused), result);
  std::ranges::for_each(trials.runs, go_on);
}

/// More ranks share sequences alone only where nothing else fits: their programs take long to
/// compose.
constexpr int64_t kMostSharings = 2, kMostSharers = 64;

/// Tells, of what two numbers of ranks that share sequences need, which placements more of them
/// could fit. Without sharing no keys travel, which take memory too: one rank tells nothing.
class SharedNeeds {
 public:
  void learn(int64_t sharers, const SearchResult& part) {
    for (const Rejection& one : part.rejected) {
      if (!one.is_of_memory()) continue;
      const Need need{static_cast<double>(sharers), static_cast<double>(one.needs_bytes)};
      if (const auto before = needs_.find(one.family); before != needs_.end())
        least_[one.family] = least(before->second, need, static_cast<double>(one.has_bytes));
      needs_[one.family] = need;
    }
    for (const Candidate& one : part.candidates) least_.erase(one.design.placement.preset);
  }
  /// Of these placements, those that so many ranks could fit.
  std::vector<std::string> possible(std::vector<std::string> presets, int64_t sharers) const {
    std::erase_if(presets, [&](const std::string& preset) {
      const auto least = least_.find(preset);
      return least != least_.end() && static_cast<double>(sharers) < least->second;
    });
    return presets;
  }

 private:
  struct Need {
    double sharers = 1, bytes = 0;
  };

  /// The fewest that could fit, if every doubling saves the same share as that from `less` to
  /// `more`: none saves a larger one, for what is not shared stays. A tenth of the memory is left
  /// for other candidates that miss least.
  static double least(const Need& less, const Need& more, double has_bytes) {
    if (more.bytes >= less.bytes) return std::numeric_limits<double>::infinity();
    const double saved = std::log(less.bytes / more.bytes) / std::log(more.sharers / less.sharers);
    return more.sharers * std::exp(std::log(more.bytes / (1.1 * has_bytes)) / saved);
  }

  std::map<std::string, Need> needs_;
  std::map<std::string, double> least_;
};

/// The run, where it leaves that open, with sequences shared by the fewest ranks: every further one
/// sends more keys for the same work. Of engines the fastest with the placement, the micro-batch
/// and the recomputation of the run file.
void search_sequences(const Run& run, const Setting& setting, SearchResult& result) {
  if (!searches(run, "sequence") || !leaves_mesh_open(run) || is_chain(run)) return;
  SharedNeeds needs;
  int64_t fitting = 0;
  for (int64_t sharers = 2; sharers <= setting.ranks && fitting < kMostSharings; ++sharers) {
    if (setting.ranks % sharers != 0) continue;
    if (sharers > kMostSharers && !result.candidates.empty()) return;
    Run shared = run;
    shared.mesh.axes.sequence = sharers;
    const Limits limits{kMostMicroStepsOfGrid,
                        needs.possible(placements(shared, setting.ranks), sharers)};
    if (limits.presets.empty()) continue;
    SearchResult part;
    search_fastest(
        share_sequences(run, sharers, setting.ranks, requirement(setting.ranks)), setting,
        sharing_text,
        [&](const Candidate& one) { search_mesh(one.design.run, setting, limits, part); }, part);
    needs.learn(sharers, part);
    if (!part.candidates.empty()) ++fitting;
    add(std::move(part), result);
  }
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
        [&](const Candidate& one) {
          search_states(one.design.run, setting, {kMostMicroStepsOfGrid}, result);
        },
        result);
    if (result.candidates.size() > before) ++fitting;
  }
}

/// Every order of the stages of a candidate; its own is known.
Trials orders_beside(Candidate usual) {
  Trials trials{orders_of_stages(usual.design.run), {}};
  const PipelineOptions& own = usual.design.run.pipeline;
  const auto at = std::ranges::find_if(trials.runs, [&](const Run& one) {
    return one.pipeline.order == own.order && one.pipeline.chunks_per_stage == own.chunks_per_stage;
  });
  ensure(at != trials.runs.end(), "plan: the order of a run is not among those of its stages");
  usual.design.run = *at;
  trials.runs.erase(at);
  trials.known.push_back(std::move(usual));
  return trials;
}

constexpr size_t kMostMixtures = 8;
constexpr int64_t kMostFittingMixtures = 3;

/// The run, where it leaves that open, on meshes of several axes, the first of which something
/// fits; where there are stages with the order that is the fastest.
void search_mixtures(const Run& run, const Setting& setting, SearchResult& result) {
  if (!leaves_mesh_open(run) || run.model.family == kUnetFamily || is_chain(run)) return;
  int64_t fitting = 0;
  for (const Run& mixed : mixed_meshes(run, setting, kMostMixtures, requirement(setting.ranks))) {
    if (fitting == kMostFittingMixtures) return;
    const size_t before = result.candidates.size();
    // With its placement: programs of many stages take long to compose.
    const auto go_on = [&](const Candidate& one) {
      const Run& mixture = one.design.run;
      search_states(mixture, setting, {kMostMicroStepsOfGrid, {mixture.placement.preset}}, result);
    };
    Candidate usual = estimate(typical(mixed, setting.ranks), setting);
    const Run lean = leanest(mixed, setting.ranks);
    if (!usual.fits() && lean.train.micro_batch_size != usual.design.run.train.micro_batch_size)
      usual = estimate(lean, setting);
    const Run mixture = usual.design.run;
    if (!usual.fits()) {  // nor do other orders
      keep(std::move(usual), mixture.placement.preset, 1, result);
    } else if (mixture.mesh.axes.stage == 1) {
      go_on(usual);
    } else {
      search_fastest(orders_beside(std::move(usual)), setting, staging_text, go_on, result);
    }
    if (result.candidates.size() > before) ++fitting;
  }
}

/// The run on the mesh of its file.
void search_own_mesh(const Run& run, const Setting& setting, SearchResult& result) {
  const int64_t sharers = run.mesh.axes.sequence;
  if (sharers == 1 || !searches(run, "sequence")) return search_mesh(run, setting, {}, result);
  search_fastest(
      share_sequences(run, sharers, setting.ranks, requirement(setting.ranks)), setting,
      sharing_text, [&](const Candidate& one) { search_mesh(one.design.run, setting, {}, result); },
      result);
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

/// Whether a step is short enough to be simulated as a whole.
bool is_short(const Candidate& candidate) {
  const strategy::Design& design = candidate.design;
  const int64_t layers = std::max<int64_t>(design.run.model.shape.layers, 1);
  return design.batch.accumulation <= kMostVisits / layers;
}

/// Puts them in order, those of the first `keep` that are short simulated as a whole.
void complete(std::vector<Candidate>& candidates, const Setting& setting, int64_t keep) {
  for (;;) {
    put_in_order(candidates);
    std::vector<Candidate*> told;
    for (Candidate& one : candidates | std::views::take(std::max<int64_t>(keep, 1)))
      if (one.told && is_short(one)) told.push_back(&one);
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
  search_grids(run, setting, result);
  search_stages(run, setting, result);
  search_mixtures(run, setting, result);
  search_sequences(run, setting, result);
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
