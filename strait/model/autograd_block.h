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

/// What enters such a block, and what its output is.
enum class AutogradInput : uint8_t {
  kActivation,  // [B, input...]
  kTokens,      // int64 [B, T]
  kFloats,      // the tokens as numbers [B, T, 1]
  kMade,        // what AutogradForm::make_input makes of a call, of elements of the block's type
};
enum class AutogradOutput : uint8_t {
  kActivation,    // [B, output...]
  kCrossEntropy,  // logits [B, T, vocabulary], whose cross-entropy is the loss
  kLosses,  // of each token [B, T]; the targets [B, T] are a second input, 0 where not counted, or
            // what AutogradForm::make_target makes of a call
};

/// Of a block of B sequences. Dims are those of one sequence.
struct AutogradForm {
  std::vector<int64_t> input_dims = {}, output_dims = {};
  AutogradInput input = AutogradInput::kActivation;
  AutogradOutput output = AutogradOutput::kActivation;
  int64_t vocabulary = 0;  // of tokens and targets
  /// Called without gradient recording; pure.
  std::function<at::Tensor(const Call&)> make_input = nullptr, make_target = nullptr;
};

/// The output from the unit's parameters, in the unit's order, and the inputs. Called from the
/// rank's thread; must be deterministic and keep no state.
using AutogradFunction =
    std::function<at::Tensor(const std::vector<at::Tensor>&, const std::vector<at::Tensor>&)>;

class AutogradBlock : public Block {
 public:
  /// `dtype`: fp32, fp64 or bf16.
  AutogradBlock(UnitShape unit, AutogradForm form, Dtype dtype, AutogradFunction function);

  /// Without gradient recording; `saved` is not used.
  void forward(const Call& call, int segment_begin, int segment_end) const override;
  /// UserError: not divisible.
  void backward_input(const Call& call, int segment_begin, int segment_end) const override;
  void backward_weight(const Call& call, int segment_begin, int segment_end) const override;
  void backward(const Call& call) const override;
  /// UserError unless the output is a loss.
  void forward_backward(const Call& call) const override;
  /// UserError: no key/value cache.
  void forward_cached(const Call& call) const override;

 private:
  struct Leaves;
  std::vector<at::Tensor> parameters(const Call& call) const;
  at::Tensor input(const Call& call) const;
  at::Tensor call_function(const std::vector<at::Tensor>& parameters,
                           const std::vector<at::Tensor>& inputs, int64_t batch) const;
  at::Tensor losses(const Call& call, const Leaves& leaves, const at::Tensor& targets) const;
  void add_gradients(const Call& call, const Leaves& leaves,
                     const std::vector<at::Tensor>& gradients) const;

  UnitShape unit_;
  AutogradForm form_;
  Dtype dtype_;
  AutogradFunction function_;
};

/// Sizes of such a block: activations only; memory that LibTorch takes during a call is its own.
BlockSizes autograd_block_sizes(int64_t input_width, int64_t output_width, int64_t batch,
                                int64_t tokens, Dtype dtype);

}  // namespace strait::model
