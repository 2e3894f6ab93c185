// The ops of a transformer block, cut wherever a sum over ranks may stand. All blocks of a chain
// have the same ones, on values of their own.
#pragma once

#include <vector>

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// Arrays of a chain; gradient and saved are -1 where nothing is trained. Block b reads
/// activation[b - 1] and writes activation[b].
struct ChainArrays {
  int batch = -1, sequences = -1, activation = -1, gradient = -1, saved = -1;
};

/// Writes the ops of transformer blocks. Thread-safe once it is there.
class BlockSegments {
 public:
  /// Declares the values that pass between ranges of segments.
  BlockSegments(program::Program& program, const ModelShape& shape,
                const draft::StepOptions& options, const ChainArrays& arrays);

  std::vector<program::Op> forward(int64_t block, bool keeps) const {
    return of_block(keeps ? keeping_ : plain_, block);
  }
  /// A forward that keeps everything and stops before the last piece of the fused block.
  std::vector<program::Op> recompute(int64_t block) const { return of_block(recompute_, block); }
  std::vector<program::Op> backward(int64_t block) const { return of_block(backward_, block); }

 private:
  using Ops = std::vector<program::Op>;
  Ops of_block(const Ops& ops, int64_t block) const;

  const ChainArrays arrays_;
  Ops keeping_, plain_, recompute_, backward_;  // of block 0
};

}  // namespace strait::strategy
