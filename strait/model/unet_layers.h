// What a block of a U-Net computes (shape/unet.h), in LibTorch's operations: each value of
// shape/unet_parts.h from those that it is made of.
#pragma once

#include <ATen/ATen.h>

#include <array>
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
  at::ScalarType type() const { return values_.front().scalar_type(); }

 private:
  std::shared_ptr<const std::map<std::string, size_t>> places_;  // one for all calls of a block
  std::vector<at::Tensor> values_;
};

/// Values of a block, [B, numbers of an image] each; undefined ones are not there yet.
using UnetTensors = std::array<at::Tensor, kNumUnetTargets + 1>;

/// A block of one rank of x and y. Immutable; thread-safe.
class UnetFunctions {
 public:
  UnetFunctions(std::shared_ptr<const Unet> unet, int64_t block, int64_t x, int64_t y);

  const UnetParts& parts() const { return parts_; }
  const UnetBlock& block() const { return unet_->blocks[static_cast<size_t>(number_)]; }
  const Unet& unet() const { return *unet_; }
  /// The value as it is in `known`, or made of what is there; what is made on the way is put there,
  /// too. A sum over ranks that is not known is the part of this rank, the `place`th along y. Of
  /// the last block kOutput is losses().
  at::Tensor make(UnetValue value, const UnetWeights& weights, int64_t place,
                  UnetTensors& known) const;
  /// Of the last block: squared errors of each number of the images, [B, colors * height^2].
  at::Tensor losses(const UnetWeights& weights, const at::Tensor& predicted,
                    const at::Tensor& noise) const;
  /// Of what enters and leaves, for an image.
  int64_t input_elements() const;
  int64_t output_elements() const;

 private:
  std::shared_ptr<const Unet> unet_;
  int64_t number_, x_, y_;
  UnetParts parts_;
};

/// Sines and cosines of each step, of falling frequency (Vaswani et al. 2017): [steps, width].
at::Tensor step_waves(const std::vector<int64_t>& steps, int64_t width);

}  // namespace strait::model
