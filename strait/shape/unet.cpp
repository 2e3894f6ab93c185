#include "strait/shape/unet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "strait/base/errors.h"
#include "strait/shape/split.h"

namespace strait {
namespace {

using enum UnetValue;

constexpr int64_t kMostImage = 4096, kMostChannels = 1 << 16, kMostLevels = 12;
constexpr int64_t kMostContext = 10'000'000;  // as model.shape.context has it
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

/// A layer: which value its weights make and, where ranks of x and y share it (unet_parts.h), which
/// dims of the weights they cut.
struct Layer {
  UnetValue makes = UnetValue::kOutput, adds_bias = UnetValue::kOutput;
  int x = -1, y = -1;
  bool slices = false;              // of what is summed over y each rank goes on with its channels
  std::vector<int64_t> parts = {};  // that enter one behind another
};

/// Parameters and operations of one block of the chain.
class Layers {
 public:
  Layers(int64_t time_width, UnetBlock& block) : time_width_(time_width), block_(block) {}

  /// Weights as fan_avg of Ho et al. scales them, or zeros where a branch begins at nothing.
  void linear(const std::string& name, int64_t in, int64_t out, int64_t places, const Layer& layer,
              int64_t kernel = 0, bool zeros = false) {
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
    weight.split.x.dim = layer.x;
    weight.split.y = {layer.y, layer.y == 1 ? layer.parts : std::vector<int64_t>{}};
    add(std::move(weight), layer.makes);
    const int over_x = layer.x == 0 ? 0 : -1, over_y = layer.y == 0 || layer.slices ? 0 : -1;
    vector(name + ".bias", out, Initial::kZeros, layer.adds_bias, {{over_x, {}}, {over_y, {}}});
    count(2.0 * static_cast<double>(window * in * out) * static_cast<double>(places), layer.makes);
  }
  void convolution(const std::string& name, UnetMap in, UnetMap out, const Layer& layer,
                   bool zeros = false) {
    linear(name, in.channels, out.channels, out.height * out.height, layer, 3, zeros);
  }
  /// Over y with the maps, of `parts` channels one behind another.
  void norm(const std::string& name, std::vector<int64_t> parts, UnetValue value) {
    const int64_t channels = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    norm(name, channels, value, {{}, {0, std::move(parts)}});
  }
  void residual(const std::string& name, const std::vector<int64_t>& parts, UnetMap out) {
    const UnetMap in = {std::accumulate(parts.begin(), parts.end(), int64_t{0}), out.height};
    norm(name + ".norm1", parts, kNormed);
    const Layer normal = {kMade, kActivated, 0, 1};
    Layer first = normal;
    first.parts = parts;
    convolution(name + ".conv1", in, out, first);
    linear(name + ".time", time_width_, out.channels, 1, normal);
    norm(name + ".norm2", out.channels, kActivated, {{0, {}}, {}});
    convolution(name + ".conv2", out, out, {kBranch, kFeatures, 1, 0}, true);
    if (in.channels != out.channels)
      linear(name + ".shortcut", in.channels, out.channels, out.height * out.height,
             {kShortcut, kFeatures, -1, 1, true, parts}, 1);
  }
  void attention(const std::string& name, UnetMap map) {
    const int64_t places = map.height * map.height;
    norm(name + ".norm", {map.channels}, kQkv);
    linear(name + ".qkv", map.channels, 3 * map.channels, places, {kQkv, kMixed, -1, 1}, 1);
    linear(name + ".output", map.channels, map.channels, places, {kAttended, kAttended, -1, 0}, 1,
           true);
    count(4.0 * static_cast<double>(places * places) * static_cast<double>(map.channels), kMixed);
  }
  void resample(UnetMap in, UnetMap out) {
    convolution("resample", in, out, {kResampled, kOutput, -1, 1, true});
  }

  std::vector<ParameterShape> parameters_;
  double flops_ = 0;

 private:
  void add(ParameterShape parameter, UnetValue value) {
    block_.parameters[parameter.name] = value;
    parameters_.push_back(std::move(parameter));
  }
  void vector(std::string name, int64_t elements, Initial initial, UnetValue value,
              ParameterSplit split) {
    ParameterShape parameter;
    parameter.name = std::move(name);
    parameter.dims = {elements};
    parameter.initial = initial;
    parameter.split = std::move(split);
    add(std::move(parameter), value);
  }
  void norm(const std::string& name, int64_t channels, UnetValue value,
            const ParameterSplit& split) {
    vector(name + ".weight", channels, Initial::kOnes, value, split);
    vector(name + ".bias", channels, Initial::kZeros, value, split);
  }
  void count(double flops, UnetValue value) {
    flops_ += flops;
    block_.flops[static_cast<size_t>(value)] += flops;
  }

  int64_t time_width_;
  UnetBlock& block_;
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
    module.parameters = std::move(layers.parameters_);
    chain_.blocks.push_back(std::move(module));
    unet_.blocks.push_back(std::move(block));
  }

  void enter() {
    const int64_t channels = options_.channels.front();
    UnetBlock block = begin(UnetStep::kEnter, channels);
    block.leaving = {{channels, options_.image}};
    Layers layers(unet_.time_width(), block);
    const Layer cut = {kOutput, kOutput, -1, 0};
    layers.convolution("conv", unet_.image(), block.leaving.back(), cut);
    layers.linear("time.0", channels, unet_.time_width(), 1, {kHidden, kHidden});
    layers.linear("time.1", unet_.time_width(), unet_.time_width(), 1, cut);
    add("enter", std::move(block), std::move(layers));
  }

  void down(int64_t level, int64_t number, bool halves) {
    const UnetMap in = maps_.back(), out = {channels_of(level), in.height};
    UnetBlock block = begin(UnetStep::kDown, out.channels);
    block.attention = attends(in.height);
    block.resamples = halves;
    block.keeps_input = true;
    block.leaving.push_back(out);
    Layers layers(unet_.time_width(), block);
    layers.residual("residual", {in.channels}, out);
    if (block.attention) layers.attention("attention", out);
    if (halves) {
      block.leaving.push_back({out.channels, out.height / 2});
      layers.resample(out, block.leaving.back());
    }
    add(fmt::format("down.{}.{}", level, number), std::move(block), std::move(layers));
  }

  void middle(int64_t number) {
    const UnetMap map = maps_.back();
    UnetBlock block = begin(UnetStep::kMiddle, map.channels);
    block.attention = block.keeps_input = number == 0;
    if (block.keeps_input) block.leaving.push_back(map);
    Layers layers(unet_.time_width(), block);
    layers.residual("residual", {map.channels}, map);
    if (block.attention) layers.attention("attention", map);
    add(fmt::format("middle.{}", number), std::move(block), std::move(layers));
  }

  void up(int64_t level, int64_t number, bool doubles) {
    const UnetMap features = maps_.back(), skip = maps_[maps_.size() - 2];
    const UnetMap out = {channels_of(level), features.height};
    UnetBlock block = begin(UnetStep::kUp, out.channels);
    block.attention = attends(out.height);
    block.resamples = doubles;
    block.leaving.resize(block.leaving.size() - 2);
    block.leaving.push_back(out);
    block.leaves_time = block.leaving.size() > 1;
    Layers layers(unet_.time_width(), block);
    layers.residual("residual", {features.channels, skip.channels}, out);
    if (block.attention) layers.attention("attention", out);
    if (doubles) {
      block.leaving.back().height *= 2;
      layers.resample(block.leaving.back(), block.leaving.back());
    }
    add(fmt::format("up.{}.{}", level, number), std::move(block), std::move(layers));
  }

  void leave() {
    const UnetMap in = maps_.back();
    UnetBlock block = begin(UnetStep::kLeave, in.channels);
    block.leaving.clear();
    Layers layers(unet_.time_width(), block);
    layers.norm("norm", {in.channels}, kPredicted);
    layers.convolution("conv", in, unet_.image(), {kPredicted, kOutput, -1, 1}, true);
    add("leave", std::move(block), std::move(layers));
  }

  const UnetOptions& options_;
  Unet unet_;
  ModuleChain chain_;
  std::vector<UnetMap> maps_;  // that leave the latest block
};

/// The largest whose numbers are a sequence.
int64_t most_image(int64_t colors) {
  return static_cast<int64_t>(std::sqrt(static_cast<double>(kMostContext / colors)));
}

}  // namespace

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
           fmt::format(
               "= {} cannot be halved for {} levels; the nearest valid value is {}", options.image,
               levels,
               std::clamp((options.image + halves / 2) / halves, int64_t{1}, kMostImage / halves) *
                   halves));
  check_range("attention_from", options.attention_from, 0, kMostImage);
  check_range("residual_blocks", options.residual_blocks, 1, 64);
  check_range("colors", options.colors, 1, 1024);
  if (const int64_t most = most_image(options.colors) / halves * halves; options.image > most)
    refuse("image", fmt::format("= {} with {} colors is more than the {} numbers of a sequence; "
                                "the nearest valid value is {}",
                                options.image, options.colors, kMostContext, most));
  check_range("diffusion_steps", options.diffusion_steps, 1, 1'000'000);
  const int64_t widest = std::ranges::max(options.channels);
  const int64_t maps = 2 * levels * (options.residual_blocks + 2);
  if (options.image * options.image * widest > kMostElements / maps)
    refuse("image", fmt::format("= {} with {} channels is more than this version can count; the "
                                "nearest valid value is {}",
                                options.image, widest, halves));
}

void check_unet_grid(const UnetOptions& options, int64_t x, int64_t y) {
  check_unet_grid(options, GridSizes{x, y});
}

std::shared_ptr<const ModuleChain> unet_chain(const UnetOptions& options) {
  check_unet(options);
  return std::make_shared<const ModuleChain>(Chain(options).build());
}

}  // namespace strait
