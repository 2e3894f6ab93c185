// Placement: over which span of ranks each kind of training state is split, in which codec it
// moves, and how often what lies beyond the gradients' span is reduced. One table of presets;
// builders read only spans, hops and codecs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/codec/codec.h"
#include "strait/codec/runs.h"
#include "strait/config/options.h"
#include "strait/config/run.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Codecs of what moves.
struct StateCodecs {
  codec::CodecSpec weights;    // gathers from the weights' shards
  codec::CodecSpec secondary;  // the secondary copy, at rest and on the wire
  codec::CodecSpec update;     // from the optimizer's shards to the weights' shards, which stay so
  std::vector<codec::CodecSpec> gradients;  // one per hop, then one for the sum across replicas
};

/// Spans in ranks; 1 = not split. Each divides the next: weights, gradients, optimizer, data ranks
/// (specs/sharding.md 2.b), so that what a rank updates lies inside what it reduces, and that
/// inside what it gathers from. State is sharded, gathered and reduced in `hops`, innermost first:
/// their sizes multiply to the optimizer's span, and the other spans are products of the first few.
struct Placement {
  std::string preset;  // for reports only
  int64_t ranks = 1;   // data ranks
  int64_t weights = 1;
  int64_t secondary =
      1;  // second copy of the weights, made by the first gather of a step; 1 = none
  int64_t gradients = 1;
  int64_t optimizer = 1;
  std::vector<int64_t> hops;
  StateCodecs codecs;
  bool across_every_micro_step = false;  // else once per step; matters when 1 < gradients < ranks
  int64_t prefetch_units = 1;
  bool hides_reductions = true;  // computing goes on while gradients are reduced
  int64_t cached_layers = 0;     // whose gathered weights stay from the forward to the backward
  /// [unit] of the compressed all-reduce (layer_codecs.h); empty: codecs.gradients, whole units.
  std::vector<codec::Runs> layers;
  bool layers_change = false;  // their settings are chosen anew while training

  /// Groups across which sums are all-reduced.
  int64_t replicas() const { return ranks / optimizer; }
  /// Number of hops whose sizes multiply to `span`.
  int64_t hops_in(int64_t span) const;
  /// Ranks that the first `count` hops span.
  int64_t span_of(int64_t count) const;
  /// The optimizer has weights of its own: those that are gathered from are kept in the update's
  /// codec.
  bool has_master() const { return codecs.update.kind != codec::CodecKind::kNone; }
  /// Hops of the borders between spans, and of those in `borders` that fit in; then one codec,
  /// none, for each hop and for the sum across replicas.
  void set_hops(const std::vector<int64_t>& borders = {});
  std::string describe()
      const;  // "weights/2 gradients/2 optimizer/2, across 2 groups every micro-step"
};

/// One row of the table: what a preset fills. A span is "none", "world", "group" (the innermost
/// level, or any small group), "inner" (the innermost level), or "node" (the level below the
/// outermost).
struct PlacementRow {
  const char* name;
  const char* weights;
  const char* secondary;
  const char* gradients;
  const char* optimizer;
  const char* reduce_every;
  const char* weights_codec;
  const char* gradients_codec;
  const char* update_codec;
};
const std::vector<PlacementRow>& placement_table();
/// Whether a preset's spans exist: some follow the levels and need one inside the outermost.
bool is_applicable(const PlacementRow& row, const Cluster& cluster, int64_t ranks);

/// The run's placement on `ranks` data ranks. Keys that the user wrote override the preset. "group"
/// is the innermost level of the cluster when it is smaller than the world, else the smallest prime
/// factor of the world. Errors: UserError with file, line, key and the nearest valid choice.
Placement resolve_placement(const Run& run, const Cluster& cluster, int64_t ranks);

}  // namespace strait::strategy
