// Placement: over which span of ranks each kind of training state is split, and how often what lies
// beyond the gradients' span is reduced. One table of presets; builders read only the spans.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/config/options.h"
#include "strait/config/run.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Spans in ranks; 1 = not split. Rule of this version: weights is 1 or equal to gradients, gradients is 1
/// or equal to optimizer, and optimizer divides the data ranks.
struct Placement {
  std::string preset;  // for reports only
  int64_t ranks = 1;   // data ranks
  int64_t weights = 1;
  int64_t gradients = 1;
  int64_t optimizer = 1;
  bool across_every_micro_step = false;  // else once per step; matters when 1 < gradients < ranks
  int64_t prefetch_units = 1;

  int64_t replicas() const {
    return ranks / optimizer;
  }  // groups across which sums are all-reduced
  std::string describe()
      const;  // "weights/2 gradients/2 optimizer/2, across 2 groups every micro-step"
};

/// One row of the table: what a preset fills. A span is "none", "world" or "group" (the innermost level).
struct PlacementRow {
  const char* name;
  const char* weights;
  const char* gradients;
  const char* optimizer;
  const char* reduce_every;
};
const std::vector<PlacementRow>& placement_table();

/// The run's placement on `ranks` data ranks. Keys that the user wrote override the preset. "group" is the
/// innermost level of the cluster when it is smaller than the world, else the smallest prime factor of the
/// world. Errors: UserError with file, line, key and the nearest valid choice.
Placement resolve_placement(const Run& run, const Cluster& cluster, int64_t ranks);

}  // namespace strait::strategy
