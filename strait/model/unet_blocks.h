// Blocks of a U-Net (shape/unet.h). What it learns from: of an image x, levels in [-1, 1], the
// block at the beginning makes sqrt(a_t) x + sqrt(1 - a_t) e, and the block at the end predicts e
// (Ho et al. 2020, equation 14). Noise e and step t are drawn for (seed, number of the sequence),
// of training or of validation, so they depend on no rank, micro-batch or order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "strait/base/provided.h"
#include "strait/model/block.h"
#include "strait/shape/unet.h"

namespace strait::model {

/// A value of the program inside a shared block, or its gradient: null where an op has it not.
struct UnetBuffer {
  void* data = nullptr;
  bool adds = false;  // a gradient of which another op has made a part
};
struct UnetBuffers {
  std::array<UnetBuffer, kNumUnetValues> values, gradients;
  bool adds_input = false;  // of Call::input_gradient
};

/// A block that ranks of x and y share. Thread-safe: all state is in the call.
class SharedUnetBlock {
 public:
  virtual ~SharedUnetBlock() = default;
  /// One op of shape/unet_parts.h. Of Call it takes input, output and their gradients as that says;
  /// `part` is the rank's; the last block's output is its loss.
  virtual void run(UnetValue value, bool backward, const Call& call,
                   const UnetBuffers& buffers) const = 0;
};

/// Block `index` of a U-Net: an AutogradBlock, or a SharedUnetBlock where ranks of shape.x and
/// shape.y share it.
inline constinit Provided<std::unique_ptr<Block>(const ModelShape& shape, int64_t index,
                                                 Dtype dtype)>
    make_unet_block;

/// What is drawn for a sequence.
struct Diffusion {
  uint64_t noise_key = 0;  // of kernel::normal
  int64_t step = 0;        // t, from 0
};
Diffusion draw_diffusion(const UnetOptions& options, uint64_t seed, bool training,
                         int64_t sequence);

/// Products of 1 - b over the steps up to each, where b grows linearly from 1e-4 to 0.02 in 1,000
/// steps; in another number, by 1,000 / steps of that, at most 0.999.
std::vector<double> kept_signal(int64_t steps);

}  // namespace strait::model
