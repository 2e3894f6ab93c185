// The operations of the residual blocks of a U-Net that ranks of x share (shape/unet.h).
#pragma once

#include <vector>

#include "strait/draft/step_options.h"
#include "strait/shape/unet.h"
#include "strait/strategy/order/block_segments.h"

namespace strait::strategy {

/// What enters and leaves a block.
struct BlockEnds {
  program::Operand input, output, output_gradient, input_gradient;
};

/// Declares what passes between the phases, and writes them. Immutable then.
class UnetOps {
 public:
  UnetOps(program::Program& program, const ModelShape& shape, const draft::StepOptions& options,
          const ChainArrays& arrays);

  bool shares(int64_t block) const { return unet_.has_residual(block); }
  std::vector<program::Op> forward(int64_t block, const BlockEnds& ends) const;
  std::vector<program::Op> backward(int64_t block, const BlockEnds& ends) const;
  /// What ends with the visit: of a forward without a backward, or of a backward.
  std::vector<program::Operand> frees(int64_t block) const;

 private:
  program::Op make_op(UnetPhase phase, int64_t block, const BlockEnds& ends) const;

  /// Of a block, by the size of the values.
  struct Values {
    program::Operand branch, branch_gradient, normed_gradient;
  };
  const ModelShape& shape_;
  const Unet& unet_;
  const draft::StepOptions options_;
  const ChainArrays arrays_;
  std::vector<Values> values_;  // by block
};

}  // namespace strait::strategy
