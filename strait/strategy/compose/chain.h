// Emits the forward and backward chain of a model, one micro-step of a step after the other, with weights moved ahead
// of use and gradients reduced behind the backward by a Movement. Straight-line; roll() makes loops of it.
#pragma once

#include <set>
#include <vector>

#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/compose/compose.h"
#include "strait/strategy/sharding/movement.h"

namespace strait::strategy {

/// The micro-steps of a chain of blocks, in their order, or one evaluation.
class Chain {
 public:
  Chain(program::Program& program, const ModelShape& shape, const Movement& movement,
        const StepOptions& options, const Placement& placement);

  struct MicroStep {
    program::Index index;     // which micro-batch
    bool accumulate = false;  // gradients already hold earlier micro-steps
    ReducePhase phase = ReducePhase::kLast;
  };
  /// load, forward, loss, backward, reductions. Micro-steps follow each other: what is left under way of the
  /// one before ends behind this one's forward, and the first gathers of the next one begin behind this one's
  /// last backward. Nothing is left of the last.
  std::vector<program::Node> train(const MicroStep& step);
  /// Reductions of the micro-step before have stages to come.
  bool reduces() const { return !under_way_.empty(); }
  /// load, forward, loss.
  std::vector<program::Node> evaluate();

 private:
  struct Item {
    int64_t block = 0;
    bool backward = false;
    bool needs_weights = true;
  };
  void declare_arrays(bool train);
  std::vector<Item> items(bool train) const;
  void emit_items(const std::vector<Item>& items, const MicroStep& step, bool train);
  /// Gathers of the items as far ahead of the current one as the placement says, of those that are not under
  /// way yet, in order. Embeddings do not count, because nothing hides behind them. Behind the items come
  /// those of the next micro-step, which are the same, up to `end`.
  void gather_ahead(const std::vector<Item>& items, size_t current, size_t end);
  void load(const MicroStep& step);
  void forward(int64_t block, bool train);
  void recompute(int64_t block);
  void loss(int64_t block, bool train, const MicroStep& step);
  void backward(int64_t block, const MicroStep& step);
  /// What stands between the gather of a unit and its use.
  void make_ready(int64_t block);
  GatherSource source_of(int64_t unit);
  /// Of the unit in the micro-step before: its gradient is about to be written anew.
  void end_reduction(int64_t unit);
  void after_contribution(int64_t unit, int64_t block, const MicroStep& step);
  /// A reduction under way.
  struct Reduction {
    int64_t unit = 0;
    Stages stages;  // not emitted yet
  };
  /// The next stage of every reduction under way, or of so many of the newest: what an embedding computes
  /// is too little for the transfers of the others to end behind it.
  void advance_reductions(size_t newest = SIZE_MAX);
  program::Op compute(const program::Kernel& kernel, int64_t block) const;
  void set_cost(program::Op& op, double flops, int64_t workspace_bytes) const;
  void read_weights(program::Op& op, int64_t block) const;
  void make_gradient(program::Op& op, int64_t block, const MicroStep& step) const;
  static void read(program::Op& op, int array, int64_t index, int slot) {
    op.reads.push_back({array, {index}, program::Access::kRead, slot});
  }
  static void write(program::Op& op, int array, int64_t index, int slot) {
    op.writes.push_back({array, {index}, program::Access::kWrite, slot});
  }
  void release(int array, int64_t index);
  bool keeps_saved(int64_t block) const;
  bool is_embedding(int64_t block) const {
    return shape_.blocks[block].kind == BlockKind::kEmbedding;
  }
  int64_t unit_of(int64_t block) const { return shape_.blocks[block].unit; }

  program::Program& program_;
  const ModelShape& shape_;
  const Movement& movement_;
  const StepOptions& options_;
  const Placement& placement_;
  std::vector<BlockSizes> sizes_;
  int batch_ = -1, sequences_ = -1, activation_ = -1, activation_gradient_ = -1, saved_ = -1;
  int agreed_ = -1, step_ = -1;
  bool trains_ = false;
  std::vector<program::Node> nodes_;
  std::vector<int64_t> contributions_;  // blocks of each unit still to come in this backward
  std::set<int64_t> made_;              // units with a gradient in this micro-step
  std::vector<int64_t> reduced_;        // units in the order of their reductions in this backward
  std::vector<bool> live_;              // unit -> its gathered copy is alive
  std::vector<bool> ready_;             // unit -> and may be used
  std::vector<GatherSource> source_;    // unit -> of its last gather
  std::vector<bool> copied_;            // unit -> this program has made its secondary copy
  std::vector<Reduction> under_way_;    // newest first
  size_t next_gather_ = 0;              // item, from the first of this micro-step
};

/// Array of the agreed scalars of `program`; declared once by compose.
int find_array(const program::Program& program, const std::string& name);

}  // namespace strait::strategy
