#include "strait/shape/unet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "strait/base/errors.h"

namespace strait {
namespace {

constexpr int64_t kMostImage = 4096, kMostChannels = 1 << 16, kMostLevels = 12;
constexpr int64_t kMostElements = int64_t{1} << 45;

[[noreturn]] void refuse(const char* key, const std::string& message) {
  const std::string name = fmt::format("model.unet.{}", key);
  ErrorPlace place;
  place.key = name;
  throw UserError(fmt::format("{} {}", name, message), place);
}

void check_range(const char* key, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    refuse(key, fmt::format("= {}; the nearest valid value is {}", value,
                            std::clamp(value, least, most)));
}

int64_t elements_of(const std::vector<UnetMap>& maps) {
  int64_t elements = 0;
  for (const UnetMap& map : maps) elements += map.elements();
  return elements;
}

/// Parameters and operations of one block of the chain.
class Layers {
 public:
  explicit Layers(int64_t time_width) : time_width_(time_width) {}

  /// Weights as fan_avg of Ho et al. scales them, or zeros where a branch begins at nothing.
  /// `cut`: dim of the weight over x; 0 cuts the bias, too.
  void linear(const std::string& name, int64_t in, int64_t out, int64_t places, int64_t kernel = 0,
              bool zeros = false, int cut = -1) {
    const int64_t window = std::max<int64_t>(kernel * kernel, 1);
    ParameterShape weight;
    weight.name = name + ".weight";
    weight.dims = {out, in};
    if (kernel > 0) weight.dims.insert(weight.dims.end(), 2, kernel);
    weight.weight_decay = true;
    if (!zeros) {
      weight.initial = Initial::kNormal;
      weight.standard_deviation = std::sqrt(2.0 / static_cast<double>(window * (in + out)));
    }
    weight.split.x.dim = cut;
    parameters_.push_back(std::move(weight));
    vector(name + ".bias", out, Initial::kZeros, cut == 0);
    const double flops = 2.0 * static_cast<double>(window * in * out) * static_cast<double>(places);
    flops_ += flops;
    if (cut >= 0) shared_flops_ += flops;
  }
  void convolution(const std::string& name, UnetMap in, UnetMap out, bool zeros = false,
                   int cut = -1) {
    linear(name, in.channels, out.channels, out.height * out.height, 3, zeros, cut);
  }
  void norm(const std::string& name, int64_t channels, bool cut = false) {
    vector(name + ".weight", channels, Initial::kOnes, cut);
    vector(name + ".bias", channels, Initial::kZeros, cut);
  }
  void residual(const std::string& name, UnetMap in, UnetMap out) {
    norm(name + ".norm1", in.channels);
    convolution(name + ".conv1", in, out, false, 0);
    linear(name + ".time", time_width_, out.channels, 1, 0, false, 0);
    norm(name + ".norm2", out.channels, true);
    convolution(name + ".conv2", out, out, true, 1);
    if (in.channels != out.channels)
      linear(name + ".shortcut", in.channels, out.channels, out.height * out.height, 1);
  }
  void attention(const std::string& name, UnetMap map) {
    const int64_t places = map.height * map.height;
    norm(name + ".norm", map.channels);
    linear(name + ".qkv", map.channels, 3 * map.channels, places, 1);
    linear(name + ".output", map.channels, map.channels, places, 1, true);
    flops_ += 4.0 * static_cast<double>(places * places) * static_cast<double>(map.channels);
  }

  std::vector<ParameterShape> parameters_;
  double flops_ = 0, shared_flops_ = 0;

 private:
  void vector(std::string name, int64_t elements, Initial initial, bool cut = false) {
    ParameterShape parameter;
    parameter.name = std::move(name);
    parameter.dims = {elements};
    parameter.initial = initial;
    if (cut) parameter.split.x.dim = 0;
    parameters_.push_back(std::move(parameter));
  }

  int64_t time_width_;
};

/// Adds the blocks one after another; what a block leaves is what the next one takes.
class Chain {
 public:
  explicit Chain(const UnetOptions& options) : options_(options) {
    unet_.options = options;
    chain_.vocabulary = kPixelLevels;
    chain_.context = unet_.image().elements();
    chain_.loss = ModuleLoss::kOwn;
  }

  ModuleChain build() {
    enter();
    const auto levels = std::ssize(options_.channels);
    for (int64_t level = 0; level < levels; ++level)
      for (int64_t i = 0; i < options_.residual_blocks; ++i)
        down(level, i, i + 1 == options_.residual_blocks && level + 1 < levels);
    middle(0);
    middle(1);
    for (int64_t level = levels - 1; level >= 0; --level)
      for (int64_t i = 0; i <= options_.residual_blocks; ++i)
        up(level, i, i == options_.residual_blocks && level > 0);
    leave();
    chain_.unet = std::make_shared<const Unet>(std::move(unet_));
    return std::move(chain_);
  }

 private:
  int64_t channels_of(int64_t level) const { return options_.channels[static_cast<size_t>(level)]; }
  bool attends(int64_t height) const { return height <= options_.attention_from; }

  UnetBlock begin(UnetStep step, int64_t channels) {
    UnetBlock block;
    block.step = step;
    block.channels = channels;
    block.entering = block.leaving = maps_;
    block.takes_time = step != UnetStep::kEnter && step != UnetStep::kLeave;
    block.leaves_time = step != UnetStep::kLeave;
    return block;
  }

  void add(const std::string& name, UnetBlock block, Layers layers) {
    maps_ = block.leaving;
    ModuleBlock module;
    module.name = name;
    const bool last = block.step == UnetStep::kLeave;
    module.output = {last ? chain_.context
                          : elements_of(maps_) + (block.leaves_time ? unet_.time_width() : 0)};
    module.forward_flops = layers.flops_;
    module.shared_flops = layers.shared_flops_;
    module.parameters = std::move(layers.parameters_);
    chain_.blocks.push_back(std::move(module));
    unet_.blocks.push_back(std::move(block));
  }

  void enter() {
    const int64_t channels = options_.channels.front();
    UnetBlock block = begin(UnetStep::kEnter, channels);
    block.leaving = {{channels, options_.image}};
    Layers layers(unet_.time_width());
    layers.convolution("conv", unet_.image(), block.leaving.back());
    layers.linear("time.0", channels, unet_.time_width(), 1);
    layers.linear("time.1", unet_.time_width(), unet_.time_width(), 1);
    add("enter", std::move(block), std::move(layers));
  }

  void down(int64_t level, int64_t number, bool halves) {
    const UnetMap in = maps_.back(), out = {channels_of(level), in.height};
    UnetBlock block = begin(UnetStep::kDown, out.channels);
    block.attention = attends(in.height);
    block.resamples = halves;
    block.keeps_input = true;
    block.leaving.push_back(out);
    Layers layers(unet_.time_width());
    layers.residual("residual", in, out);
    if (block.attention) layers.attention("attention", out);
    if (halves) {
      block.leaving.push_back({out.channels, out.height / 2});
      layers.convolution("resample", out, block.leaving.back());
    }
    add(fmt::format("down.{}.{}", level, number), std::move(block), std::move(layers));
  }

  void middle(int64_t number) {
    const UnetMap map = maps_.back();
    UnetBlock block = begin(UnetStep::kMiddle, map.channels);
    block.attention = block.keeps_input = number == 0;
    if (block.keeps_input) block.leaving.push_back(map);
    Layers layers(unet_.time_width());
    layers.residual("residual", map, map);
    if (block.attention) layers.attention("attention", map);
    add(fmt::format("middle.{}", number), std::move(block), std::move(layers));
  }

  void up(int64_t level, int64_t number, bool doubles) {
    const UnetMap features = maps_.back(), skip = maps_[maps_.size() - 2];
    const UnetMap in = {features.channels + skip.channels, features.height};
    const UnetMap out = {channels_of(level), features.height};
    UnetBlock block = begin(UnetStep::kUp, out.channels);
    block.attention = attends(in.height);
    block.resamples = doubles;
    block.leaving.resize(block.leaving.size() - 2);
    block.leaving.push_back(out);
    block.leaves_time = block.leaving.size() > 1;
    Layers layers(unet_.time_width());
    layers.residual("residual", in, out);
    if (block.attention) layers.attention("attention", out);
    if (doubles) {
      block.leaving.back().height *= 2;
      layers.convolution("resample", block.leaving.back(), block.leaving.back());
    }
    add(fmt::format("up.{}.{}", level, number), std::move(block), std::move(layers));
  }

  void leave() {
    const UnetMap in = maps_.back();
    UnetBlock block = begin(UnetStep::kLeave, in.channels);
    block.leaving.clear();
    Layers layers(unet_.time_width());
    layers.norm("norm", in.channels);
    layers.convolution("conv", in, unet_.image(), true);
    add("leave", std::move(block), std::move(layers));
  }

  const UnetOptions& options_;
  Unet unet_;
  ModuleChain chain_;
  std::vector<UnetMap> maps_;  // that leave the latest block
};

}  // namespace

const char* unet_phase_name(UnetPhase phase) {
  static constexpr const char* kNames[kNumUnetPhases] = {"part", "join", "join_gradient",
                                                         "part_gradient", "norm_gradient"};
  return kNames[static_cast<size_t>(phase)];
}

bool Unet::has_residual(int64_t block) const {
  const UnetStep step = blocks.at(static_cast<size_t>(block)).step;
  return step != UnetStep::kEnter && step != UnetStep::kLeave;
}

UnetMap Unet::residual_input(int64_t block) const {
  const UnetBlock& b = blocks.at(static_cast<size_t>(block));
  UnetMap map = b.entering.back();
  if (b.step == UnetStep::kUp) map.channels += b.entering[b.entering.size() - 2].channels;
  return map;
}

UnetMap Unet::branch(int64_t block) const {
  return {blocks.at(static_cast<size_t>(block)).channels, residual_input(block).height};
}

int64_t Unet::normed_elements(int64_t block) const {
  return residual_input(block).elements() + time_width();
}

int64_t unet_groups(int64_t channels) {
  int64_t groups = std::clamp<int64_t>(channels / 2, 1, 32);
  while (channels % groups != 0) --groups;
  return groups;
}

void check_unet(const UnetOptions& options) {
  const auto levels = std::ssize(options.channels);
  if (levels < 1 || levels > kMostLevels)
    refuse("channels", fmt::format("has {} levels; the nearest valid number is {}", levels,
                                   std::clamp<int64_t>(levels, 1, kMostLevels)));
  for (const int64_t channels : options.channels)
    if (channels < 2 || channels > kMostChannels)
      refuse("channels", fmt::format("holds {}; the nearest valid value is {}", channels,
                                     std::clamp<int64_t>(channels, 2, kMostChannels)));
  if (options.channels.front() % 2 != 0)
    refuse("channels", fmt::format("begins with {}, but the embedding of a time step has as many "
                                   "sines as cosines; the nearest valid value is {}",
                                   options.channels.front(), options.channels.front() + 1));
  check_range("image", options.image, 1, kMostImage);
  const int64_t halves = int64_t{1} << (levels - 1);
  if (options.image % halves != 0)
    refuse("image",
           fmt::format("= {} cannot be halved for {} levels; the nearest valid value is {}",
                       options.image, levels, (options.image / halves + 1) * halves));
  check_range("attention_from", options.attention_from, 0, kMostImage);
  check_range("residual_blocks", options.residual_blocks, 1, 64);
  check_range("colors", options.colors, 1, 1024);
  check_range("diffusion_steps", options.diffusion_steps, 1, 1'000'000);
  const int64_t widest = std::ranges::max(options.channels);
  const int64_t maps = 2 * levels * (options.residual_blocks + 2);
  if (options.image * options.image * widest > kMostElements / maps)
    refuse("image", fmt::format("= {} with {} channels is more than this version can count; the "
                                "nearest valid value is {}",
                                options.image, widest, halves));
}

void check_unet_grid(const UnetOptions& options, int64_t x) {
  const auto fits = [&](int64_t size) {
    return std::ranges::all_of(options.channels,
                               [&](int64_t channels) { return unet_groups(channels) % size == 0; });
  };
  if (x >= 1 && fits(x)) return;
  int64_t nearest = std::max<int64_t>(x, 1);
  while (!fits(nearest)) --nearest;
  ErrorPlace place;
  place.key = "mesh.axes.x";
  throw UserError(fmt::format("mesh.axes.x = {} does not divide the groups of every norm between "
                              "model.unet.channels = [{}]; the nearest valid value is {}",
                              x, fmt::join(options.channels, ", "), nearest),
                  place);
}

std::shared_ptr<const ModuleChain> unet_chain(const UnetOptions& options) {
  check_unet(options);
  return std::make_shared<const ModuleChain>(Chain(options).build());
}

}  // namespace strait
