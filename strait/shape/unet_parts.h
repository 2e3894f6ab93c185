// How ranks of mesh axes x and y share a block of a U-Net (unet.h), after AxoNN (Singh et al.
// 2023). Maps that pass from block to block are cut by channels over y, the embedding of the step
// with them. Of a residual block the first convolution is a normal layer (channels that enter over
// y, those that leave over x), the second its transposed partner, so nothing is redistributed
// between the two, nor from block to block. All other layers are cut over y alone.
//
// clang-format off
//   value              made of                        numbers of an image   summed over  its gradient over
//   moments            input                          groups 2, fp64        y            y
//   normed             input, moments                 (input + time) / y                 x
//   made               normed                         channels / x          y
//   shortcut           input                          channels              y            y
//   activated          made                           channels / x                       y
//   branch             activated                      channels / y          x
//   features           branch, input or shortcut      channels / y
//   attention_moments  features                       groups 2, fp64        y            y
//   qkv                features, attention_moments    3 channels            y
//   mixed              qkv                            channels                           y
//   attended           features, mixed                channels / y
//   resampled          attended or features           channels              y            y
//   hidden             input of the first block       time                               y
//   predicted          input of the last block        colors                y
//   output             what leaves the block; of the last one its loss
// clang-format on
//
// Channels stand for maps of channels, inputs for those of the residual block. A value is **kept**
// from the forward pass to the backward pass where its sum has ranks; all else is made again of
// what is kept. It is **cut** where a sum stands behind it or behind its gradient, or where several
// cut values need it: there an op ends, and its gradient is a value of the program. What is not cut
// is made within the ops of what needs it. With x = y = 1 nothing is cut, and a block is one piece.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <memory>
#include <vector>

#include "strait/base/dtype.h"

namespace strait {

struct Unet;  // unet.h

/// In forward order.
enum class UnetValue : uint8_t {
  kMoments,
  kNormed,
  kMade,
  kShortcut,
  kActivated,
  kBranch,
  kFeatures,
  kAttentionMoments,
  kQkv,
  kMixed,
  kAttended,
  kResampled,
  kHidden,
  kPredicted,
  kOutput,
  kInput
};
inline constexpr int kNumUnetValues = 14;   // of those that pass inside a block: before kOutput
inline constexpr int kNumUnetTargets = 15;  // of those that are made
const char* unet_value_name(UnetValue value);

enum class GridAxis : uint8_t { kNone, kX, kY };
/// Of which ranks' parts a value, or its gradient, is the sum.
GridAxis unet_sum_axis(UnetValue value);
GridAxis unet_gradient_axis(UnetValue value);

using UnetValueSet = std::bitset<kNumUnetTargets + 1>;

/// What an op does: it makes a value, or from its gradient those of what it is made of.
struct UnetOp {
  UnetValue value = UnetValue::kOutput;
  bool backward = false;
  UnetValueSet reads;           // kept ones and kInput
  UnetValueSet gradients = {};  // that it makes or adds to
  double flops = 0;             // of an image
};

/// One block on one rank of x and y. Immutable.
class UnetParts {
 public:
  /// `x` and `y` are sizes of axes (check_unet_grid).
  UnetParts(std::shared_ptr<const Unet> unet, int64_t block, int64_t x, int64_t y);

  const Unet& unet() const { return *unet_; }
  int64_t block() const { return block_; }
  int64_t x() const { return x_; }
  int64_t y() const { return y_; }
  /// Whether ranks share it; otherwise it is one piece.
  bool is_shared() const;
  bool is_kept(UnetValue value) const;
  bool is_cut(UnetValue value) const { return cut_[index(value)]; }
  /// Of what a value is made, by the table above.
  UnetValueSet sources(UnetValue value) const { return sources_[index(value)]; }
  /// Of what the op of a cut value makes it: cut values and kInput; and what it makes on the way,
  /// itself included.
  UnetValueSet leaves(UnetValue value) const;
  UnetValueSet inlined(UnetValue value) const;

  /// In the order of the program. A forward pass alone ends with the op of kOutput; the backward
  /// pass begins with its gradient, which in the last block makes the loss, too.
  std::vector<UnetOp> forward() const;
  std::vector<UnetOp> backward() const;

  /// Of an image on this rank.
  int64_t elements(UnetValue value) const;
  double forward_flops() const;
  /// Sums of forward passes are fp32 beside bf16, and so is what is kept of them.
  static Dtype kept_dtype(UnetValue value, Dtype dtype);
  static Dtype gradient_dtype(UnetValue value, Dtype dtype);

 private:
  static size_t index(UnetValue value) { return static_cast<size_t>(value); }
  int64_t size(GridAxis axis) const;
  void add(UnetValue value, std::initializer_list<UnetValue> sources);
  void add_residual();
  void find_cuts();
  /// What is read to make a value again: kept values and kInput. Adds to `flops` what that takes.
  UnetValueSet needs(UnetValue value, double& flops) const;
  double flops(UnetValue value) const;

  std::shared_ptr<const Unet> unet_;
  int64_t block_, x_, y_;
  UnetValueSet made_, cut_;  // in this block
  std::array<UnetValueSet, kNumUnetTargets + 1> sources_;
};

}  // namespace strait
