// A U-Net that predicts the noise in images (Ho, Jain, Abbeel 2020, Denoising Diffusion
// Probabilistic Models, section 3 and appendix B) as a chain of blocks. What passes from block to
// block is one flat value: the maps that later blocks want, skips among them, so that a chain may
// be cut, sharded and saved like any other. docs/models.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strait/shape/modules.h"
#include "strait/shape/options.h"
#include "strait/shape/unet_parts.h"

namespace strait {

/// The name of the family, which is no row of the table of families.
inline constexpr const char* kUnetFamily = "unet";
/// Pixels are tokens: levels of a color.
inline constexpr int64_t kPixelLevels = 256;

/// `channels` maps of height x height numbers.
struct UnetMap {
  int64_t channels = 0, height = 0;
  int64_t elements() const { return channels * height * height; }
  bool operator==(const UnetMap&) const = default;
};

/// What a block takes and what it leaves, beside the maps that it hands on.
enum class UnetStep : uint8_t {
  kEnter,   // noisy image -> features; the embedding of the time step
  kDown,    // the last map -> features, which stay as a skip; and the same halved
  kMiddle,  // the last map -> features; of two such blocks the first leaves the map as a skip
  kUp,      // the last two maps, features and the newest skip -> features, perhaps doubled
  kLeave    // features -> predicted noise, and its loss
};

struct UnetBlock {
  UnetStep step = UnetStep::kEnter;
  std::vector<UnetMap> entering, leaving;  // in the order in which they lie in the value
  int64_t channels = 0;                    // of what its residual block makes
  bool keeps_input = false;                // hands it on as a skip, in front of what it makes
  bool attention = false;
  bool resamples = false;  // kDown halves what it hands on, kUp doubles it
  /// The embedding of the time step lies behind the maps: [Unet::time_width()].
  bool takes_time = false, leaves_time = false;
  /// How many of the first maps that enter leave as they are.
  size_t num_passing() const {
    const bool ends = step == UnetStep::kMiddle && !keeps_input;
    return entering.size() - (step == UnetStep::kUp ? 2 : ends ? 1 : 0);
  }
  std::array<double, kNumUnetTargets> flops{};  // of an image, to make each value of it
  std::map<std::string, UnetValue> parameters;  // which value each of its parameters helps to make
};

/// A U-Net of `options` with its blocks, one per entry of the chain.
struct Unet {
  UnetOptions options;
  std::vector<UnetBlock> blocks;
  int64_t time_width() const { return 4 * options.channels.front(); }
  UnetMap image() const { return {options.colors, options.image}; }
  bool has_residual(int64_t block) const;
  /// Maps that the residual block takes, joined, and what its second convolution makes.
  UnetMap residual_input(int64_t block) const;
  UnetMap branch(int64_t block) const;
};

/// Groups of a group norm: the largest divisor of `channels` that is at most 32 and at most half of
/// them.
int64_t unet_groups(int64_t channels);

/// UserError (key model.unet.*) naming the nearest valid value.
void check_unet(const UnetOptions& options);

/// UserError (key mesh.axes.x or y) unless groups of all norms that x cuts are whole, and y divides
/// all channels.
void check_unet_grid(const UnetOptions& options, int64_t x, int64_t y);

/// Residual blocks as Ho et al. have them: `residual_blocks` per level going down, one more going
/// up, attention behind those whose maps are at most attention_from high, and in the middle.
/// Errors: check_unet. Cost: O(blocks^2) for the skips that pass by.
std::shared_ptr<const ModuleChain> unet_chain(const UnetOptions& options);

}  // namespace strait
