// Ranks the ways to run a job on a number of ranks: every placement, with the orders that its
// stages can take, and the micro-batch sizes and recompute choices that the batch allows, each
// composed, priced, simulated and checked for memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/config/run.h"
#include "strait/plan/candidate.h"

namespace strait::plan {

/// Why a family of candidates was left out.
struct Rejection {
  std::string family;  // "ddp", "sequence 4, heads", "rounds of 500 steps"
  std::string reason;  // "memory", or what a run file of this family would be refused with
  int64_t count = 0;
  int64_t needs_bytes = 0, has_bytes = 0;  // memory alone
  std::string where;                       // what needs most: "optimizer", "activations", ...
  std::string smallest;                    // which candidate of the family needs so little
  bool is_of_memory() const { return reason == "memory"; }
};

struct SearchResult {
  int64_t enumerated = 0;
  std::vector<Candidate> candidates;  // feasible ones, fastest first; of those less than
                                      // 1 % slower than the fastest those with the fewest
                                      // codecs, then the smallest, first
  std::vector<Rejection> rejected;
  double wall_seconds = 0;
};

/// Searches what plan.search names; what it does not name stays as the run file says. Micro-batches
/// that take more than 4,096 micro-steps are not tried. Memory per rank may be plan.memory_share of
/// the cluster's. Where the run file names no axis, two grids (of a U-Net all), two numbers of
/// ranks that share sequences, up to three numbers of stages and two grids of stages (mixed.h) are
/// tried too; of engines the fastest with the run file's placement, micro-batch and recomputation,
/// of orders of stages the fastest with typical ones. With codecs in plan.search the fastest
/// candidate of each placement is tried with gradients, weights and updates compressed too where
/// links make it wait; recomputation where memory is short. Long steps are told from shorter ones
/// (short_steps.h), but for those of the first plan.keep that can be simulated as a whole. Without
/// codecs in plan.search, presets other than the file's own have no codecs but those that are
/// written. Candidates are tried on all cores; what is found does not depend on how many. A run
/// that is refused on its own mesh, such as a batch smaller than its ranks, and cannot be mended by
/// these is a UserError naming the nearest valid choice. `corpus` tells how long documents are,
/// where batches are of them; null: as the context. `watch` hears of every candidate. Empty
/// candidates = nothing fits, and `rejected` says why (the caller decides).
SearchResult search(const Run& run, int64_t ranks, int64_t vocabulary,
                    const Corpus* corpus = nullptr, const Watch& watch = {});

/// Refuses a run of which no candidate can be, before any is tried: by its keys, its mesh on its
/// cluster and its policy. UserError.
void require_possible(const Run& run, int64_t ranks);

/// The plan report of the best `keep` candidates. `run_file`: where the best one was written, or
/// "".
Json search_json(const SearchResult& result, int64_t ranks, int64_t keep,
                 const std::string& run_file);

}  // namespace strait::plan
