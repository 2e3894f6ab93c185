// A step before it is a program: what passes of strategy/ rewrite. A pass reads marks ("this needs the
// weights of unit u", "this makes a gradient of unit u"), never the name of another pass.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "strait/program/program.h"

namespace strait::draft {

/// What is computed at one place of the order: kernels on one block, without the operands that hold
/// weights and gradients, which whoever places them adds.
struct Visit {
  int64_t block = 0;
  bool brief = false;            // too little computing for transfers to hide behind
  std::optional<int64_t> needs;  // unit whose weights the ops read
  std::optional<int64_t> makes;  // unit to whose gradient the last op contributes
  std::vector<program::Op> ops;
  std::vector<program::Operand> frees;  // after the ops
};

/// One micro-batch's way through the chain.
struct MicroStep {
  program::Index index;
  bool accumulates = false;  // gradients hold those of earlier micro-batches of the step
  bool last = true;          // of the step
  std::vector<program::Op> begin;
  std::vector<Visit> visits;
  std::vector<program::Operand> frees;
};

/// Where the state of a unit lies at the end of a step, and what brings updated weights to where they are
/// gathered from.
struct Shard {
  int64_t unit = 0;
  int group = -1;  // whose parts `partition` has
  program::Partition partition;
  program::Operand gradient, weights;
  bool own_weights = false;  // the optimizer's, beside those that are gathered from
  std::vector<program::Operand> moments, residuals;
  std::vector<program::Node> publish;
};

struct Draft {
  program::Program program;  // groups, streams, values; in its body what is finished
  /// The micro-batches of a step: writes the one with this index, or with the variable of a loop over the
  /// inner ones. Empty: nothing is computed.
  std::function<MicroStep(const program::Index& index, bool first, bool last)> micro_step;
  int64_t micro_batches = 0;
  std::vector<Shard> shards;  // by unit
  int world = -1;             // group and stream of what all ranks agree on
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

/// A call of a kernel without operands and attributes.
program::Op kernel_op(const program::Kernel& kernel);
program::Op free_op(const program::Operand& operand);
/// Appends nodes to the body, runs of equal ones as repeats over `variable`.
void append_rolled(program::Program& program, std::vector<program::Node> nodes,
                   const char* variable);

}  // namespace strait::draft
