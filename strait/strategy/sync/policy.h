// When replicas of the model agree, and how: [sync] of a run, resolved. One table of policies;
// programs and kernels read only what it fills in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/codec/codec.h"
#include "strait/config/run.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// The outer optimizer, on D = the mean over replicas of (outer weights - local weights):
///   d = D / (penalty + |learning_rate * v| / gap);  v = clamp(momentum * v + d, -clip, +clip);
///   outer weights -= learning_rate * (v, or with nesterov d + momentum * v)
/// (DiLoCo, arXiv 2311.08105; CO2, arXiv 2401.16265, whose penalty and clip are those; SlowMo).
struct OuterRule {
  bool nesterov = false;
  double learning_rate = 1, momentum = 0;
  double clip = 0;     // of every element of v; 0 = off
  double penalty = 1;  // constant
  double gap = 0;      // what an element must have moved to add 1 to its penalty; 0 = off
  /// The penalty is that of the full inner learning rate and falls with it, to 1 at the least.
  bool follows_rate = false;
};

/// One policy of local steps. Steps are counted from 1: fragment p starts its transfers after the
/// steps t with (t - p * period / fragments) mod period == 0, and takes the result up `delay` steps
/// later (Streaming DiLoCo, arXiv 2501.18512, Algorithm 2). delay == period: the next border
/// starts a transfer and takes the one before up (CO2).
struct Policy {
  std::string name = "every-step";
  int64_t steps = 0;  // of the run: a last round may be shorter
  int64_t replicas = 1;
  int64_t period = 1, delay = 0, fragments = 1;
  bool strided = true;  // layers p, p + fragments, ...; else neighbours
  double mixing = 0;    // share of the local weights that stays when a result is taken up
  bool eager = false;   // the own part of a stale result is replaced by the newest
  OuterRule outer;
  codec::CodecSpec codec;  // of what replicas send each other

  bool local_steps() const { return name != "every-step"; }
  bool one_round_late() const { return delay == period && delay > 0; }
  /// Which fragment a unit belongs to: layers by the order, everything else 0.
  int64_t fragment_of(const std::string& unit, int64_t layers) const;
  /// "2 replicas, streaming-diloco: 4 fragments, each every 30 steps, ...".
  std::string describe() const;
  /// Step after which fragment p starts its first transfer.
  int64_t first_border(int64_t fragment) const;
};

inline const Policy kEveryStepPolicy;

/// The run's policy for `data_ranks` data ranks and a model of so many layers; the outermost
/// replicas are the mesh's axis "replica". Errors: UserError with file, line, key and the nearest
/// valid choice, for keys too that cannot take effect.
Policy resolve_policy(const Run& run, const Cluster& positions, int64_t data_ranks);

}  // namespace strait::strategy
