// How the state of a unit moves under a placement: gather before use, reduce after the backward, update,
// and gather after the update. Emits operations; knows nothing of models or micro-batches.
#pragma once

#include <vector>

#include "strait/program/program.h"
#include "strait/strategy/sharding/unit_values.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// When a gradient becomes final.
enum class ReducePhase : uint8_t {
  kInner,
  kLast
};  // a micro-step before the last; the last of the step

/// Emits transfers of unit values into `nodes`. Lanes: gathers, inner reductions and sums across groups
/// each have their own, so that none waits behind another.
class Movement {
 public:
  Movement(program::Program& program, const UnitValues& values, const Placement& placement,
           const Cluster& cluster);

  bool gathers() const { return placement_.weights > 1; }
  /// The operand a block reads its weights from.
  program::Operand weights(int64_t unit) const;
  /// The operand a backward writes its gradient to, and whether it adds (G is fresh every micro-step).
  program::Operand gradient(int64_t unit) const;
  bool gradient_is_fresh() const { return placement_.gradients > 1; }

  /// W[unit] = all_gather(w[unit]), not before the values in `waits` are free. No-op unless gathers().
  void gather(int64_t unit, int64_t block, std::vector<program::Operand> waits,
              std::vector<program::Node>& nodes) const;
  /// free W[unit] (no-op unless gathers()).
  void release(int64_t unit, std::vector<program::Node>& nodes) const;
  /// Reductions that follow a unit's last contribution in a micro-step. `accumulate`: g already holds
  /// earlier micro-steps.
  void reduce(int64_t unit, int64_t block, bool accumulate, ReducePhase phase,
              std::vector<program::Node>& nodes) const;
  /// Transient values of `unit` that a later backward must wait for to bound memory.
  std::vector<program::Operand> reduction_buffers(int64_t unit) const;
  /// After the update: all-gather of the updated weights where they are whole but updated in shards.
  void publish(int64_t unit, int64_t block, std::vector<program::Node>& nodes) const;

  int reduce_stream() const { return reduce_stream_; }

 private:
  int lane(int group);
  program::Op transfer(program::OpKind kind, int stream, int group, int64_t unit,
                       int64_t block) const;

  program::Program& program_;
  const UnitValues& values_;
  const Placement& placement_;
  const Cluster& cluster_;
  int gather_stream_ = -1, reduce_stream_ = -1, across_stream_ = -1;
};

}  // namespace strait::strategy
