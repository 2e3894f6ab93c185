// One way to run a job, with what it would take: composed, priced and simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "strait/base/json.h"
#include "strait/config/run.h"
#include "strait/cost/cost.h"
#include "strait/plan/quality.h"
#include "strait/program/memory.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"

namespace strait::plan {

/// Steps whose times are as close as this are alike: less than 1 % is within the noise of any.
inline constexpr double kAlike = 1.01;

/// What tells policies of local steps apart.
struct PolicyFigures {
  double utilization = 0;              // step with unlimited links / step
  int64_t peak_bytes_in_flight = 0;    // that a rank sends for one border, or for one step
  std::optional<QualityCost> quality;  // nullopt: nobody has published or measured it
};

/// What a rank may hold: plan.memory_share of the cluster's memory.
int64_t usable_bytes(const strategy::Design& design);

/// Of one that does not fit only design and memory are known. Of one that is `told` by shorter
/// steps (short_steps.h) the programs of the design are those of such a step.
struct Candidate {
  strategy::Design design;
  sim::Result simulated;
  cost::Cost cost;
  program::MemoryUse memory;            // peak of the rank that holds most
  double bound_seconds = 0;             // its floating-point operations at the cluster's rate
  std::optional<PolicyFigures> policy;  // where policies are searched
  bool told = false;

  int64_t has_bytes() const { return usable_bytes(design); }
  bool fits() const { return memory.total() <= has_bytes(); }
};

/// Hears of every run that is about to be composed, from any thread.
using Watch = std::function<void(const Run&)>;

/// What a run is composed for.
struct Setting {
  int64_t ranks = 1, vocabulary = 0;
  const Corpus* corpus = nullptr;  // where batches are of documents: how long these are
  Watch watch = {};
};

/// Composes a run and, where it fits into memory, prices and simulates it. Errors: those of
/// strategy::make_design; an InternalError names the candidate.
Candidate evaluate(const Run& run, const Setting& setting);

/// Neighbours of mesh.axes.sequence that exchange heads; 1: none do, nothing: as many as are
/// cheapest for each batch.
std::optional<int64_t> head_ranks(const strategy::Design& design);

/// What tells the candidates of a search apart: "stage 2, 1f1b, zero3, recompute none,
/// micro-batches of 4".
std::string candidate_text(const Run& run);

/// Of the simulated step; utilisation is a share of the cluster's rate over all ranks.
double tokens_per_second(const Candidate& candidate);
double model_flops_utilization(const Candidate& candidate);

/// Its entry in the plan report.
Json candidate_json(const Candidate& candidate, int64_t position);

}  // namespace strait::plan
