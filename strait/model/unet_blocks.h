// Blocks of a U-Net (shape/unet.h). What it learns from: of an image x, levels in [-1, 1], the
// block at the beginning makes sqrt(a_t) x + sqrt(1 - a_t) e, and the block at the end predicts e
// (Ho et al. 2020, equation 14). Noise e and step t are drawn for (seed, number of the sequence),
// of training or of validation, so they depend on no rank, micro-batch or order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strait/model/block.h"
#include "strait/shape/unet.h"

namespace strait::model {

/// What passes between the phases of a shared block.
struct UnetValues {
  void* branch = nullptr;           // [B, branch elements], fp32 beside bf16
  void* branch_gradient = nullptr;  // the same, not wide
  void* normed_gradient = nullptr;  // [B, normed_elements]
};

/// A residual block that ranks of x share. Thread-safe: all state is in the call.
class SharedUnetBlock {
 public:
  virtual ~SharedUnetBlock() = default;
  /// The values and the parts of `call` that shape/unet.h names for the phase.
  virtual void run(UnetPhase phase, const Call& call, const UnetValues& values) const = 0;
};

/// Block `index` of a U-Net: an AutogradBlock, or a SharedUnetBlock where shape.x > 1 and it has a
/// residual block.
std::unique_ptr<Block> make_unet_block(const ModelShape& shape, int64_t index, Dtype dtype);

/// What is drawn for a sequence.
struct Diffusion {
  uint64_t noise_key = 0;  // of kernel::normal
  int64_t step = 0;        // t, from 0
};
Diffusion draw_diffusion(const UnetOptions& options, uint64_t seed, bool training,
                         int64_t sequence);

/// Products of 1 - b over the steps up to each, where b grows linearly from 1e-4 to 0.02.
std::vector<double> kept_signal(int64_t steps);

}  // namespace strait::model
