// Any LibTorch module as a block. The backward recomputes the forward under autograd, so nothing is
// saved and input and weight gradients come together: a schedule that splits them refuses such a
// block.
#pragma once

#include <functional>
#include <vector>

#include "strait/model/block.h"

namespace at {
class Tensor;
}

namespace strait::model {

/// output [B, T, output_width] from the unit's parameters, in the unit's order, and input
/// [B, T, input_width]. Called from the rank's thread; must be deterministic and keep no state.
using AutogradFunction =
    std::function<at::Tensor(const std::vector<at::Tensor>&, const at::Tensor&)>;

class AutogradBlock : public Block {
 public:
  AutogradBlock(UnitShape unit, int64_t input_width, int64_t output_width, Dtype dtype,
                AutogradFunction function);

  /// Without gradient recording; `saved` is not used.
  void forward(const Call& call, int segment_begin, int segment_end) const override;
  /// UserError: not divisible.
  void backward_input(const Call& call, int segment_begin, int segment_end) const override;
  void backward_weight(const Call& call, int segment_begin, int segment_end) const override;
  void backward(const Call& call) const override;
  /// UserError: not a head.
  void forward_backward(const Call& call) const override;
  /// UserError: no key/value cache.
  void forward_cached(const Call& call) const override;

 private:
  std::vector<at::Tensor> parameters(const Call& call) const;
  at::Tensor input(const Call& call) const;
  at::Tensor checked_output(const Call& call, const at::Tensor& output) const;

  UnitShape unit_;
  int64_t input_width_, output_width_;
  Dtype dtype_;
  AutogradFunction function_;
};

/// Sizes of such a block: activations only; memory that LibTorch takes during a call is its own.
BlockSizes autograd_block_sizes(int64_t input_width, int64_t output_width, int64_t batch,
                                int64_t tokens, Dtype dtype);

}  // namespace strait::model
