// The ops of a transformer block, cut wherever a sum over ranks may stand. All blocks of a chain
// have the same ones, on values of their own.
#pragma once

#include <vector>

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// Arrays of a chain; gradient and saved are -1 where nothing is trained, up where that is saved
/// with the rest. Block b reads activation[b - 1] and writes activation[b].
struct ChainArrays {
  int batch = -1, sequences = -1, activation = -1, gradient = -1, saved = -1, up = -1;
};

/// Writes the ops of transformer blocks. Thread-safe once it is there.
class BlockSegments {
 public:
  /// Declares the values that pass between ranges of segments. `splits`: backward() leaves out what
  /// deferred() does.
  BlockSegments(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options,
                const ChainArrays& arrays, bool splits = false);

  std::vector<program::Op> forward(int64_t block, bool keeps) const {
    return of_block(keeps ? keeping_ : plain_, block);
  }
  /// A forward that keeps everything and stops before the last piece of the fused block.
  std::vector<program::Op> recompute(int64_t block) const { return of_block(recompute_, block); }
  /// `behind_forward`: in a visit that has begun with recompute().
  std::vector<program::Op> backward(int64_t block, bool behind_forward) const {
    return of_block(behind_forward ? behind_forward_ : backward_, block);
  }
  /// The gradients of those weights whose inputs and output gradients take no more memory than what
  /// the forward has kept: qkv, up, and the norms before them. So a block whose backward waits for
  /// them holds no more than one that waits for its backward.
  std::vector<program::Op> deferred(int64_t block) const { return of_block(deferred_, block); }
  /// What backward() leaves to deferred(): every block has values of its own.
  std::vector<program::Operand> deferred_values(int64_t block) const;
  bool is_deferred(const program::Operand& operand) const;

 private:
  using Ops = std::vector<program::Op>;
  Ops of_block(const Ops& ops, int64_t block) const;

  const ChainArrays arrays_;
  Ops keeping_, plain_, recompute_, backward_, behind_forward_, deferred_;  // of block 0
  std::vector<int> deferred_arrays_;
};

}  // namespace strait::strategy
