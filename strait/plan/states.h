// The part of a search that knows no mesh: placements, orders of stages, recomputations and
// micro-batches of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strait/config/run.h"
#include "strait/plan/candidate.h"
#include "strait/plan/search.h"
#include "strait/plan/trials.h"
#include "strait/topology/cluster.h"

namespace strait::plan {

/// A simulated step replays each layer in each of its micro-steps, on a grid with sums inside it.
inline constexpr int64_t kMostMicroSteps = 4096, kMostMicroStepsOfGrid = 512;
inline constexpr int64_t kMostVisits = 1 << 16;

/// What of a run a search may vary.
struct Limits {
  int64_t most_micro_steps = kMostMicroSteps;
  std::vector<std::string> presets = {};  // placements; empty: placements()
};

/// What a placement sees: the ranks of one replica.
Cluster positions_of_replica(const Run& run, int64_t ranks);

/// The placements that a search tries: the run's own where plan.search does not name them.
std::vector<std::string> placements(const Run& run, int64_t ranks);

/// A run of stages as it is to be compared with other orders: with the state sharded but not the
/// weights, which every micro-batch needs, and with the largest micro-batches of which there are
/// enough that stages seldom idle, or else the smallest.
Run typical(Run run, int64_t ranks);

/// The same with the smallest micro-batches, which need the least memory.
Run leanest(Run run, int64_t ranks);

/// Every placement, recomputation and micro-batch, with the mesh and the order of the run.
void search_states(const Run& run, const Setting& setting, const Limits& limits,
                   SearchResult& result);

/// The same with every order that the stages of the run can take.
void search_mesh(const Run& run, const Setting& setting, const Limits& limits,
                 SearchResult& result);

/// One candidate of every run that has none yet. With the fastest of those that fit, or where none
/// does with the one that needs the least memory, `go_on` searches. `text` names a run that only a
/// batch of the data refuses.
void search_fastest(const Trials& trials, const Setting& setting,
                    const std::function<std::string(const Run&)>& text,
                    const std::function<void(const Candidate&)>& go_on, SearchResult& result);

/// work(0) to work(count - 1) on all cores. Composing, pricing and simulating share nothing. Of
/// what is thrown the first, by number, is thrown on.
void on_all_cores(size_t count, const std::function<void(size_t)>& work);

}  // namespace strait::plan
