// Declares the values of training state in a program: shards of weights, gradients and moments, gathered
// units and full gradients, one array per run of equal units. A placement decides only their partitions.
#pragma once

#include <string>
#include <vector>

#include "strait/program/program.h"
#include "strait/shape/shape.h"
#include "strait/strategy/sharding/placement.h"

namespace strait::strategy {

/// Which states an optimizer keeps per parameter beside the weights.
struct OptimizerState {
  std::vector<std::string> names;  // "m", "v" for AdamW; "m" for SGD with momentum; empty without
};

/// What a unit value is. The letter is the array's name before the dot.
enum class UnitValue : uint8_t {
  kShard,     // w: resident weights
  kGathered,  // W: the whole unit, transient; only when weights are split
  kGradient,  // g: accumulated gradient, resident
  kFull,      // G: whole gradient of one micro-step; only when gradients are split
  kReduced,  // R: reduced inside the inner group, not yet across; only with sums across every micro-step
  kMoment,  // m, v: optimizer state
};

/// Arrays of all unit values of a program. Lives while a program is being built.
class UnitValues {
 public:
  /// Declares groups "inner" (span of the optimizer), "across" and "world" and the resident arrays.
  UnitValues(program::Program& program, const ModelShape& shape, const Placement& placement,
             Dtype dtype);

  void declare_gradients(const OptimizerState& state);
  program::Operand operand(UnitValue value, int64_t unit, program::Role role,
                           int64_t moment = 0) const;
  /// Split of the unit over the inner group.
  program::Partition partition(int64_t unit) const;
  int64_t num_moments() const { return static_cast<int64_t>(moments_.size()); }

  int world_group() const { return world_; }
  int inner_group() const { return inner_; }
  int across_group() const { return across_; }

 private:
  struct UnitClass {
    std::string name;
    int64_t elements = 0;
    int64_t count = 0;
  };
  /// Adds one array per class; returns the index of the first.
  int declare(const std::string& letter, int64_t span, program::Lifetime lifetime,
              program::Category category);

  program::Program& program_;
  const Placement& placement_;
  Dtype dtype_;
  std::vector<UnitClass> classes_;
  std::vector<std::pair<int, int64_t>> place_;  // unit -> (class, index)
  int world_ = -1, inner_ = -1, across_ = -1;
  int shard_ = -1, gathered_ = -1, gradient_ = -1, full_ = -1, reduced_ = -1;
  std::vector<int> moments_;
};

}  // namespace strait::strategy
