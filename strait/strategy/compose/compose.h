// The one visible function that turns a model, a placement and a cluster into programs:
// order -> segments -> layout -> placement -> codecs -> synchronisation.
#pragma once

#include <cstdint>
#include <string>

#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/sharding/placement.h"
#include "strait/strategy/sharding/unit_values.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Which blocks keep only their input and run their forward again in the backward: every `every`-th
/// transformer block (1 = all, 0 = none).
struct Recompute {
  int64_t every = 0;
  bool applies(int64_t layer) const { return every > 0 && layer % every == every - 1; }
};
/// "none" | "block" | "every:K"; UserError otherwise.
Recompute parse_recompute(const std::string& text);

/// What decides a step program beside model, placement and cluster.
struct StepOptions {
  int64_t micro_batch_size = 1;  // sequences per rank and micro-step
  int64_t tokens = 1;            // tokens per sequence
  int64_t accumulation = 1;      // micro-steps per optimizer step
  Dtype dtype = Dtype::kFloat32;
  Recompute recompute;
  OptimizerState optimizer;
  bool documents = false;  // batches carry document starts
  bool weights_unchanged =
      false;  // since the last program: secondary copies of the weights still hold
};

/// One optimizer step: accumulation micro-steps, clipping, update. Step kind "steady", or "unchanged" when
/// weights_unchanged.
program::Program compose_train(const ModelShape& shape, const Placement& placement,
                               const Cluster& cluster, const StepOptions& options);
/// Brings the optimizer's weights to where they are gathered from, as every step does at its end: for the
/// first step and after loading. Without operations where the optimizer updates the weights themselves, which
/// are then set everywhere as they are. Step kind "publish".
program::Program compose_publish(const ModelShape& shape, const Placement& placement,
                                 const Cluster& cluster, Dtype dtype);
/// Loss over one batch per rank, by the same movement of weights: it makes secondary copies or, when
/// weights_unchanged, uses them. Step kind "evaluation" or "evaluation-unchanged".
program::Program compose_evaluation(const ModelShape& shape, const Placement& placement,
                                    const Cluster& cluster, const StepOptions& options);
/// `options.tokens` new tokens per sequence behind a key/value cache of `capacity` tokens, on one rank.
program::Program compose_generation(const ModelShape& shape, const Cluster& cluster,
                                    const StepOptions& options, int64_t capacity);

}  // namespace strait::strategy
