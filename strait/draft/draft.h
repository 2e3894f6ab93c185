// A step before it is a program: what passes of strategy/ rewrite. A pass reads marks ("this needs
// the weights of unit u", "this makes a gradient of unit u"), never the name of another pass. There
// is one draft per class of ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strait/program/program.h"
#include "strait/topology/cluster.h"
#include "strait/topology/mesh.h"

namespace strait::draft {

/// What a visit is for. Where the backward pass is split, kBackwards makes the gradient of a
/// block's input and kWeights, at any time behind it, the rest of that of its weights.
enum class Work : uint8_t { kForwards, kBackwards, kWeights };

/// What is computed at one place of the order: kernels on one block, without the operands that hold
/// weights and gradients, which whoever places them adds; and transfers of what enters or leaves.
struct Visit {
  int64_t block = 0;
  Work work = Work::kForwards;
  bool last = false;             // no later visit of the step adds to the gradient it makes
  bool brief = false;            // too little computing for transfers to hide behind
  std::optional<int64_t> needs;  // unit whose weights the ops read
  std::optional<int64_t> makes;  // unit to whose gradient an op contributes
  std::vector<program::Op> ops;
  std::vector<program::Operand> frees;  // after the ops
};

/// Visits one after another. A simple order has one micro-batch's way through the chain; another
/// one may join visits of several micro-batches.
struct MicroStep {
  bool last = true;      // of the step
  bool repeats = false;  // the next one has the same visits
  std::vector<program::Op> begin;
  std::vector<Visit> visits;
  std::vector<program::Operand> frees;
};

/// Micro-steps [begin, end) that a loop may do, `period` of them in a turn: those of a turn differ
/// from those of the turn before in the numbers of micro-batches alone, which are `advance` higher.
struct EqualSteps {
  int64_t begin = 0, end = 0;
  int64_t period = 1, advance = 1;
};

/// The micro-steps of a step. Where rows are split over x (shape/segment.h), visits hold the
/// transfers of rows, whose group and stream the pass that shares blocks fills in.
struct Schedule {
  int64_t micro_steps = 0;        // 0: nothing is computed
  std::vector<EqualSteps> equal;  // ascending
  /// The micro-step with this number, whose micro-batches are `later` ones: 0, or what the variable
  /// of a loop adds to those of its first turn, to which `number` belongs.
  std::function<MicroStep(int64_t number, const program::Index& later)> micro_step;
};
/// Index of a micro-batch that is so much later.
inline program::Index micro_batch_index(int64_t micro_batch, program::Index later) {
  later.constant += micro_batch;
  return later;
}

/// A unit that ranks of other classes hold, too: the sum of their gradients is that of the unit.
struct SharedUnit {
  int64_t unit = 0;
  int group = -1, stream = -1;  // its holders
};

/// What encodes of a gradient have lost, and after how many updates it becomes 0; 0: never.
struct Residual {
  program::Operand value;
  int64_t ends_every = 0;
};

/// Where the state of a unit lies at the end of a step, and what brings updated weights to where
/// they are gathered from.
struct Shard {
  int64_t unit = 0;
  int group = -1;  // whose parts `partition` has
  program::Partition partition;
  program::Operand gradient, weights;
  bool own_weights = false;  // the optimizer's, beside those that are gathered from
  std::vector<program::Operand> moments;
  std::vector<Residual> residuals;
  std::vector<program::Node> publish;
  /// The bf16 numbers that the first op of `publish` rounds the weights to, and does nothing else.
  std::optional<program::Operand> rounded;
};

struct Draft {
  program::Program program = {};  // groups, streams, values; in its body what is finished
  Mesh mesh;
  int64_t rank = 0;                 // of the class: its place in the mesh is that of the others
  std::vector<int64_t> units = {};  // that ranks of the class hold, ascending
  /// Visits of kWeights are apart from those of kBackwards, and each adds its part of a gradient.
  bool splits_backward = false;
  Schedule schedule = {};
  /// Arrays of activations with a rank's rows of micro-batches whose rows are split over x, which
  /// are gathered from or scattered into.
  std::vector<int> own_rows = {};
  std::vector<SharedUnit> shared = {};
  std::vector<Shard> shards = {};  // one per unit
  int agreement = -1;              // group and stream of the agreed scalars
  int agreement_stream = -1;
};

/// Index of a value array; InternalError when there is none of that name.
int find_array(const program::Program& program, const std::string& name);
/// Declares an array of whole values.
struct WholeValues {
  std::string name;
  int64_t count = 1;
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 0;
  program::Lifetime lifetime = program::Lifetime::kTransient;
  program::Category category = program::Category::kActivations;
  program::Tier tier = program::Tier::kDevice;
};
int declare(program::Program& program, const WholeValues& values);

/// The number of a group with these members, which is declared unless it is there; its level is
/// that of the cluster which it spans.
int add_group(program::Program& program, const Cluster& cluster, program::Group group);
/// A new stream on the level of a group.
int add_lane(program::Program& program, const Cluster& cluster, int group);

/// Rewrites every visit of the schedule, which there is, as it stands so far.
void rewrite_visits(Draft& draft, std::function<void(Visit&)> rewrite);

/// Takes away the transient activations that no operation names.
void drop_unnamed(program::Program& program);

/// A call of a kernel without operands and attributes.
program::Op kernel_op(const program::Kernel& kernel);
program::Op free_op(const program::Operand& operand);
/// Appends nodes to the body, runs of equal ones as repeats over `variable`.
void append_rolled(program::Program& program, std::vector<program::Node> nodes,
                   const char* variable);

}  // namespace strait::draft
