// How the state of a unit moves under a placement: gather before use, reduce after the backward,
// update, and gather after the update, hop by hop and in the codecs of the placement. Emits
// operations; knows nothing of models or micro-batches.
#pragma once

#include <vector>

#include "strait/program/program.h"
#include "strait/strategy/sharding/kernels.h"
#include "strait/strategy/sharding/unit_values.h"

namespace strait::strategy {

/// When a gradient becomes final.
enum class ReducePhase : uint8_t {
  kInner,
  kLast
};  // a micro-step before the last; the last of the step

/// Where a unit is gathered from.
enum class GatherSource : uint8_t {
  kShards,         // the shards of the weights
  kShardsAndCopy,  // the same, and a secondary copy is made of what they give
  kCopy,           // the secondary copy
};

/// Operations that belong together: transfers in flight after one stage are awaited by the next.
using Stages = std::vector<std::vector<program::Node>>;

/// Where encodes of gradients count what is not finite, and what codecs that draw read.
struct StepScalars {
  program::Operand agreed, step;
};

/// Emits transfers of unit values. Each hop of the gathers, each hop of the reductions and the sums
/// across groups have a lane of their own, so that none waits behind another.
class Movement {
 public:
  Movement(draft::Draft& draft, const UnitValues& values, const Placement& placement,
           const Cluster& cluster, const StepScalars& scalars);

  /// Weights are used from a transient copy W, which gather() and ready() make and release() frees.
  bool copies() const { return values_.copies(); }
  /// The operand a block reads its weights from.
  program::Operand weights(int64_t unit) const;
  /// The operand a backward writes its gradient to, and whether it is made anew every micro-step.
  program::Operand gradient(int64_t unit) const;
  bool gradient_is_fresh() const { return placement_.gradients > 1; }

  /// Transfers towards W[unit], not before the values in `waits` are free.
  void gather(int64_t unit, GatherSource source, std::vector<program::Operand> waits,
              std::vector<program::Node>& nodes) const;
  /// What makes W[unit] of the gathered pieces and, when asked for, the secondary copy of W[unit].
  void ready(int64_t unit, GatherSource source, std::vector<program::Node>& nodes) const;
  /// free W[unit].
  void release(int64_t unit, std::vector<program::Node>& nodes) const;

  /// Reductions that follow a unit's last contribution in a micro-step. `accumulate`: g already
  /// holds earlier micro-steps. Without codecs one stage; else one more for each hop that decodes,
  /// and before the last of them some without operations, which leave its transfer more time where
  /// it brings few bytes.
  Stages reduce(int64_t unit, bool accumulate, ReducePhase phase) const;
  /// Transient values of `unit` that a later backward must wait for to bound memory.
  std::vector<program::Operand> reduction_buffers(int64_t unit) const;

  /// After the update: updated shards to where weights are gathered from.
  void publish(int64_t unit, std::vector<program::Node>& nodes) const;

  /// Lane of sums over all ranks.
  int agreement_stream() const { return agreement_stream_; }

 private:
  bool coded(const codec::CodecSpec& codec) const { return codec.kind != codec::CodecKind::kNone; }
  program::Op transfer(program::OpKind kind, int stream, int group) const;
  program::Op gather_hop(int64_t unit, int64_t hop, const PieceFormat* pieces) const;
  program::Op coding(const program::Kernel& kernel, const PieceFormat& format, Pieces pieces) const;
  void free_value(UnitValue value, int64_t unit, int64_t nth,
                  std::vector<program::Node>& nodes) const;
  /// One hop of a reduction: from `source`, which holds the parts of the hop's group, to `target`.
  struct Reduction {
    int64_t unit, hop;
    program::Operand source, target;
    bool accumulate;
    bool frees_full;  // the source is G, and not needed any more
  };
  /// Error feedback, where the codec asks for it: the encode keeps the nth residual of the unit.
  void feed_back(program::Op& encode, const PieceFormat& format, int64_t unit, int64_t nth) const;
  program::Op encode_gradient(const Reduction& reduction, const program::Operand& pieces,
                              Pieces which, int64_t residual) const;
  /// The source's parts for the members of a hop, once what brings the source has come.
  void encode_sent(const Reduction& reduction, Stages& stages) const;
  /// A further stage, that makes the target of the pieces that have `come` (S or T), and frees
  /// them.
  void decode_into_target(const program::Kernel& kernel, UnitValue come, const Reduction& reduction,
                          Stages& stages) const;
  /// A hop of the outermost level that brings few bytes beside the gradient's.
  bool may_stay_on_the_way(const Reduction& reduction) const;
  void reduce_hop(const Reduction& reduction, Stages& stages) const;
  void sum_across(const Reduction& reduction, Stages& stages) const;
  program::Op low_rank_op(const program::Kernel& kernel, int64_t unit) const;
  program::Op sum_of_factors(const program::Operand& factors) const;
  void sum_low_rank(const Reduction& reduction, Stages& stages) const;

  program::Program& program_;
  const UnitValues& values_;
  const Placement& placement_;
  StepScalars scalars_;
  std::vector<int> gather_streams_, reduce_streams_;  // [hop]
  int secondary_stream_ = -1, across_stream_ = -1, agreement_stream_ = -1;
};

}  // namespace strait::strategy
