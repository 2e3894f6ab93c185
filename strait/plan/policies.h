// Which policy of local steps keeps ranks computing over slow links, and what it costs in loss.
#pragma once

#include <cstdint>
#include <span>

#include "strait/config/run.h"
#include "strait/plan/search.h"

namespace strait::plan {

/// When a result is taken up: at once, one step later, as late as the next fragment allows, or at
/// the border behind.
enum class Delay : uint8_t { kNone, kOneStep, kMostSteps, kOneRound };

/// A row of the table of policies that are tried. The outer optimizer is that of the figure which
/// says what the policy costs; everything else, such as the number of fragments, is the policy's
/// default.
struct PolicyRow {
  const char* policy;
  int64_t period;
  Delay delay;
  bool eager;
  const char* codec;
};

std::span<const PolicyRow> policy_table();

/// True when the run asks for policies: plan.utilization is not 0.
bool searches_policies(const Run& run);

/// Composes and simulates every row of the table on the run's cluster, with sync.replica as the
/// file says, or as one rank and as each level below the outermost. Placement, micro-batch and
/// recomputation are those that search finds fastest for the same replicas, without codecs that the
/// file does not name. With codecs in plan.search the fastest run that exchanges every step in them
/// is one more row.
///
/// Of the candidates that reach plan.utilization the one with the least cost in loss comes first:
/// costs that were measured for rounds as long and replicas as many go before those of fewer, and
/// unknown ones come last. Behind them are those that fall short, best utilisation first. Between
/// equal costs the earlier row of the table wins. Rows that cannot be, do not fit or have rounds
/// longer than the run are left out. Errors: UserError when policies cannot vary: plan.search does
/// not name "sync", [sync] fixes more than the replica, there is one data rank, or another key
/// allows no local steps.
/// Cost: a search for every kind of replica (two of every step), and one round simulated twice per
/// row; `watch` hears of every candidate.
SearchResult search_policies(const Run& run, int64_t ranks, int64_t vocabulary,
                             const Watch& watch = {});

/// Whether a candidate of search_policies reaches the target.
bool reaches_target(const Candidate& candidate);

}  // namespace strait::plan
