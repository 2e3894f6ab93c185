// Emits the forward and backward chain of a model for one micro-step, with weights moved ahead of use and
// gradients reduced behind the backward by a Movement. Straight-line; roll() makes loops of it.
#pragma once

#include <vector>

#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/compose/compose.h"
#include "strait/strategy/sharding/movement.h"

namespace strait::strategy {

/// One micro-step of a chain of blocks.
class Chain {
 public:
  Chain(program::Program& program, const ModelShape& shape, const Movement& movement,
        const StepOptions& options, const Placement& placement);

  struct MicroStep {
    program::Index index;     // which micro-batch
    bool accumulate = false;  // gradients already hold earlier micro-steps
    ReducePhase phase = ReducePhase::kLast;
  };
  /// load, forward, loss, backward, reductions.
  std::vector<program::Node> train(const MicroStep& step);
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
  /// Gathers of the items up to `last` that are not under way yet, in order.
  void gather_ahead(const std::vector<Item>& items, size_t current, size_t last);
  void load(const MicroStep& step);
  void forward(int64_t block, bool train, const MicroStep& step);
  void recompute(int64_t block, const MicroStep& step);
  void loss(int64_t block, bool train, const MicroStep& step);
  void backward(int64_t block, const MicroStep& step);
  /// What stands between the gather of a unit and its use.
  void make_ready(int64_t block);
  GatherSource source_of(int64_t unit);
  void after_contribution(int64_t unit, int64_t block, const MicroStep& step);
  /// The next stage of every reduction under way.
  void advance_reductions();
  program::Op compute(program::OpKind kind, int64_t block, const MicroStep& step) const;
  program::Operand at(int array, int64_t index, program::Role role) const {
    return {array, {index, -1, 0}, role};
  }
  void release(int array, int64_t index);
  bool keeps_saved(int64_t block) const;
  int64_t unit_of(int64_t block) const { return shape_.blocks[block].unit; }

  program::Program& program_;
  const ModelShape& shape_;
  const Movement& movement_;
  const StepOptions& options_;
  const Placement& placement_;
  std::vector<BlockSizes> sizes_;
  int batch_ = -1, activation_ = -1, activation_gradient_ = -1, saved_ = -1, agreed_ = -1;
  std::vector<program::Node> nodes_;
  std::vector<int64_t> contributions_;  // blocks of each unit still to come in this backward
  std::vector<int64_t> reduced_;        // units in the order of their reductions
  std::vector<bool> live_;              // unit -> its gathered copy is alive
  std::vector<bool> ready_;             // unit -> and may be used
  std::vector<GatherSource> source_;    // unit -> of its last gather
  std::vector<bool> copied_;            // unit -> this program has made its secondary copy
  std::vector<Stages> under_way_;       // reductions, stages not emitted yet, newest first
  size_t next_gather_ = 0;
};

/// Array of the agreed scalars of `program`; declared once by compose.
int find_array(const program::Program& program, const std::string& name);

}  // namespace strait::strategy
