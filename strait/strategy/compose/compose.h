// The one visible function that turns a model, a placement and a cluster into a program: passes
// over one draft, in the order of application.
#pragma once

#include <memory>
#include <vector>

#include "strait/draft/step_options.h"
#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/adapt/policy.h"
#include "strait/strategy/sharding/placement.h"
#include "strait/strategy/sync/sync.h"
#include "strait/topology/cluster.h"
#include "strait/topology/mesh.h"

namespace strait::strategy {

using draft::Purpose;
using draft::StepOptions;

/// What programs are made from: the model as a rank of the mesh holds it (Layout::local_shape),
/// where its state lies along data, and on what it runs. Whoever composes keeps them.
struct Ingredients {
  const ModelShape& shape;
  const Placement& placement;
  const Cluster& cluster;
  const Mesh& mesh;
  const Policy& policy = kEveryStepPolicy;
  AdaptPolicy adapt = {};
  /// Of planned batches, by rank: the plan of its row, which ranks of another row need not share.
  /// Empty: options.plan is that of all.
  std::vector<std::shared_ptr<const sequence::Plan>> plans = {};
};

/// The programs of one purpose, one per class of ranks. Purposes and the step kinds of their
/// programs:
///
/// * kTrain: one optimizer step, that is micro-steps, clipping, update. "steady", or with
///   weights_unchanged "unchanged".
///   With validation kBehind it validates the step before; kAlone is that alone: "validation".
/// * kEvaluate: loss over one batch per rank, by the same movement of weights. It makes secondary
///   copies or, with weights_unchanged, uses them. "evaluation", "evaluation-unchanged".
/// * kGenerate: options.tokens new tokens per sequence behind a key/value cache, on one rank.
///   "generation".
/// * kPublish: brings the optimizer's weights to where they are gathered from, as every step does
///   at its end: for the first step and after loading. Without operations where the optimizer
///   updates the weights themselves, which are then set everywhere as they are. "publish".
/// * kBorder: see compose_border.
std::vector<program::Program> compose(const Ingredients& from, const StepOptions& options);

/// That of one rank alone, as if no other were of its class.
program::Program compose_for_rank(const Ingredients& from, const StepOptions& options,
                                  int64_t rank);

/// What replicas do at a border of rounds: see BorderPart. With options.in_backward, of a border
/// that is in_step: the step and the border in one, where the transfers of a unit start as soon as
/// it is updated.
std::vector<program::Program> compose_border(const Ingredients& from, StepOptions options,
                                             const Border& border);

/// Whether a border that starts transfers may begin them in the step before it. Not beside
/// secondary copies of weights, for which there are steps of two kinds.
bool in_step(const Placement& placement, const Border& border);

/// The same as the first where all ranks lie along data and are of one class.
program::Program compose(const ModelShape& shape, const Placement& placement,
                         const Cluster& cluster, const StepOptions& options);

/// Nothing is split: one rank holds all. For generation.
Placement whole_placement();

}  // namespace strait::strategy
