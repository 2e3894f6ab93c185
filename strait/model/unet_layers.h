// What a block of a U-Net computes (shape/unet.h), in LibTorch's operations. A residual block is
// three functions one after another, so that ranks may share the one in the middle.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strait/shape/unet.h"

namespace strait::model {

/// Parameters of a block by their names in it.
class UnetWeights {
 public:
  /// `unit`: that of a block named `block`.
  UnetWeights(const UnitShape& unit, const std::string& block);
  /// With these values, in the unit's order.
  UnetWeights with(const std::vector<at::Tensor>& values) const;

  const at::Tensor& operator[](const std::string& name) const;
  bool has(const std::string& name) const { return places_->contains(name); }

 private:
  std::shared_ptr<const std::map<std::string, size_t>> places_;  // one for all calls of a block
  std::vector<at::Tensor> values_;
};

/// Noisy images [B, colors * height^2], each with the sines and cosines of its step behind it ->
/// the value that leaves.
at::Tensor enter(const UnetWeights& weights, const Unet& unet, const at::Tensor& input);

/// The value that enters -> normed features, and the embedding of the step: [B, normed_elements].
at::Tensor normed_input(const UnetWeights& weights, const UnetBlock& block,
                        const at::Tensor& input);
/// -> [B, channels * height^2]; of weights that x ranks share, a part of a sum.
at::Tensor branch(const UnetWeights& weights, const Unet& unet, int64_t block, int64_t x,
                  const at::Tensor& normed);
/// The value that enters and the branch -> the value that leaves.
at::Tensor join(const UnetWeights& weights, const UnetBlock& block, const at::Tensor& input,
                const at::Tensor& branch);
/// Whether a parameter belongs to normed_input, to branch, or to join.
enum class UnetPiece : uint8_t { kNorm, kBranch, kJoin };
UnetPiece piece_of(const std::string& parameter);

/// Squared errors of each number of the images, [B, colors * height^2].
at::Tensor leave(const UnetWeights& weights, const UnetBlock& block, const at::Tensor& input,
                 const at::Tensor& noise);

/// Sines and cosines of each step, of falling frequency (Vaswani et al. 2017): [steps, width].
at::Tensor step_waves(const std::vector<int64_t>& steps, int64_t width);

}  // namespace strait::model
