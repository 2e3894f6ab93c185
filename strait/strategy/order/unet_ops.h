// The operations of the blocks of a U-Net that ranks of x and y share (shape/unet_parts.h).
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "strait/draft/step_options.h"
#include "strait/shape/unet_parts.h"
#include "strait/strategy/order/block_segments.h"

namespace strait::strategy {

/// What enters and leaves a block; nothing where the chain ends.
struct BlockEnds {
  std::optional<program::Operand> input, output, output_gradient, input_gradient;
};

/// Declares what passes inside the blocks, and writes them. Immutable then.
class UnetOps {
 public:
  UnetOps(program::Program& program, const ModelShape& shape, const draft::StepOptions& options,
          const ChainArrays& arrays);

  bool shares(int64_t block) const { return parts(block).is_shared(); }
  std::vector<program::Op> forward(int64_t block, const BlockEnds& ends) const;
  std::vector<program::Op> backward(int64_t block, const BlockEnds& ends) const;
  /// Of the last block: both in training, else the loss alone.
  std::vector<program::Op> loss(const BlockEnds& ends) const;
  /// What ends with the visit: of a forward without a backward, or of a backward.
  std::vector<program::Operand> frees(int64_t block) const;

 private:
  /// By value; -1 where there is none.
  using Arrays = std::array<int, kNumUnetValues>;
  const UnetParts& parts(int64_t block) const { return parts_[static_cast<size_t>(block)]; }
  bool trains() const { return options_.purpose == draft::Purpose::kTrain; }
  program::Op make_op(const UnetOp& from, int64_t block, const BlockEnds& ends,
                      UnetValueSet& begun) const;

  const draft::StepOptions options_;
  const ChainArrays arrays_;
  std::vector<UnetParts> parts_;            // by block
  std::vector<Arrays> values_, gradients_;  // likewise
  int agreed_ = -1, step_ = -1;
};

}  // namespace strait::strategy
