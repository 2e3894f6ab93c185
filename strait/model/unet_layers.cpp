#include "strait/model/unet_layers.h"

#include <c10/util/Optional.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "strait/base/errors.h"

namespace strait::model {
namespace {

using at::Tensor;
using enum UnetValue;

constexpr double kNormEps = 1e-6;
constexpr double kLongestWave = 10'000;  // of the embedding of time steps

Tensor as_maps(const Tensor& flat, UnetMap map) {
  return flat.reshape({flat.size(0), map.channels, map.height, map.height});
}

/// Of one head over all pixels: [B, 3 channels, pixels] -> [B, channels, pixels].
Tensor attend(const Tensor& qkv) {
  const std::vector<Tensor> parts = qkv.chunk(3, 1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(parts[0].size(1)));
  const Tensor scores = (parts[0].transpose(1, 2).matmul(parts[1]) * scale).softmax(-1);
  return parts[2].matmul(scores.transpose(1, 2));
}

/// Makes values of a block on the `place`th of `y` ranks.
struct Maker {
  const Unet& unet;
  const UnetBlock& block;
  int64_t number, x, y, place;
  const UnetWeights& weights;
  const UnetTensors& known;

  const Tensor& given(UnetValue value) const { return known[static_cast<size_t>(value)]; }
  at::ScalarType type() const { return weights.type(); }
  UnetMap own(UnetMap map) const { return {map.channels / y, map.height}; }

  /// Numbers of the first maps that enter; behind the last lies the embedding of the step.
  int64_t entering_elements(size_t count) const {
    if (block.step == UnetStep::kEnter) return unet.image().elements();
    int64_t elements = 0;
    for (size_t index = 0; index < count; ++index)
      elements += own(block.entering[index]).elements();
    return elements;
  }
  /// A map that enters, counted from the last.
  Tensor entering(size_t from_last) const {
    const size_t index = block.entering.size() - 1 - from_last;
    const UnetMap map = own(block.entering[index]);
    const int64_t at = entering_elements(index);
    return as_maps(given(kInput).slice(1, at, at + map.elements()), map);
  }
  Tensor time() const { return given(kInput).slice(1, entering_elements(block.entering.size())); }
  /// What the residual block, or the last block, takes: channels of one or two maps.
  Tensor taken() const {
    return block.step == UnetStep::kUp ? at::cat({entering(0), entering(1)}, 1) : entering(0);
  }
  std::vector<int64_t> taken_channels() const {
    std::vector<int64_t> parts = {block.entering.back().channels};
    if (block.step == UnetStep::kUp)
      parts.push_back(block.entering[block.entering.size() - 2].channels);
    return parts;
  }

  /// Which channels of this rank are in which group, of maps whose parts are cut one by one:
  /// [channels, groups] of zeros and ones.
  Tensor members(const std::vector<int64_t>& parts) const {
    const int64_t channels = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    const int64_t groups = unet_groups(channels);
    const Tensor members = at::zeros({channels / y, groups}, at::kDouble);
    double* one = members.data_ptr<double>();
    int64_t begin = 0;
    for (const int64_t part : parts) {
      for (int64_t channel = part / y * place; channel < part / y * (place + 1); ++channel) {
        one[(begin + channel) / (channels / groups)] = 1.0;
        one += groups;
      }
      begin += part;
    }
    return members;
  }
  /// Sums of the numbers of each group, and of their squares.
  Tensor moments(const Tensor& maps, const std::vector<int64_t>& parts) const {
    const Tensor wide = maps.to(at::kDouble), of = members(parts);
    return at::cat({wide.sum({2, 3}).matmul(of), wide.square().sum({2, 3}).matmul(of)}, 1);
  }
  Tensor group_norm(const std::string& name, const Tensor& maps, const std::vector<int64_t>& parts,
                    const Tensor& sums) const {
    const Tensor& weight = weights[name + ".weight"];
    const Tensor& bias = weights[name + ".bias"];
    const int64_t channels = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    const int64_t groups = unet_groups(channels);
    if (y == 1) return at::group_norm(maps, groups, weight, bias, kNormEps);
    const double count = static_cast<double>(channels / groups * maps.size(2) * maps.size(3));
    const std::vector<Tensor> halves = sums.chunk(2, 1);
    const Tensor mean = halves[0] / count;
    const Tensor variance = (halves[1] / count - mean.square()).clamp_min(0.0);
    const Tensor of = members(parts).t();
    const auto of_channels = [&](const Tensor& of_groups) {
      return of_groups.matmul(of).unsqueeze(-1).unsqueeze(-1);
    };
    const at::ScalarType wide = type() == at::kBFloat16 ? at::kFloat : type();
    const Tensor normed = (maps.to(wide) - of_channels(mean).to(wide)) *
                          of_channels((variance + kNormEps).rsqrt()).to(wide);
    return (normed * weight.reshape({1, -1, 1, 1}) + bias.reshape({1, -1, 1, 1})).to(type());
  }

  /// Without a bias where the result is a part of a sum over y.
  Tensor convolution(const std::string& name, const Tensor& maps, bool part = true,
                     int64_t stride = 1) const {
    const Tensor& weight = weights[name + ".weight"];
    c10::optional<Tensor> bias;
    if (!part || y == 1) bias = weights[name + ".bias"];
    return at::conv2d(maps, weight, bias, stride, weight.size(2) / 2);
  }
  Tensor linear(const std::string& name, const Tensor& rows, bool part = true) const {
    c10::optional<Tensor> bias;
    if (!part || y == 1) bias = weights[name + ".bias"];
    return at::linear(rows, weights[name + ".weight"], bias);
  }
  /// What was left out of the parts of a sum.
  Tensor with_bias(const Tensor& maps, const std::string& name) const {
    return y == 1 ? maps : maps + weights[name + ".bias"].reshape({1, -1, 1, 1});
  }
  /// Of a sum over y of all channels.
  Tensor own_channels(const Tensor& maps) const {
    const int64_t channels = maps.size(1) / y;
    return y == 1 ? maps : maps.slice(1, place * channels, (place + 1) * channels);
  }

  UnetMap made() const { return unet.branch(number); }
  Tensor last() const {
    return as_maps(given(block.attention ? kAttended : kFeatures), own(made()));
  }

  Tensor normed() const {
    const Tensor maps =
        at::silu(group_norm("residual.norm1", taken(), taken_channels(), given(kMoments)));
    return at::cat({maps.flatten(1), at::silu(time())}, 1);
  }
  Tensor first_convolution() const {
    const UnetMap map = own(unet.residual_input(number));
    const Tensor maps = as_maps(given(kNormed).slice(1, 0, map.elements()), map);
    const Tensor time = given(kNormed).slice(1, map.elements());
    return convolution("residual.conv1", maps) +
           linear("residual.time", time).unsqueeze(-1).unsqueeze(-1);
  }
  Tensor activated() const {
    const UnetMap map = {made().channels / x, made().height};
    const Tensor maps =
        with_bias(with_bias(as_maps(given(kMade), map), "residual.conv1"), "residual.time")
            .to(type());
    return at::silu(at::group_norm(maps, unet_groups(made().channels) / x,
                                   weights["residual.norm2.weight"], weights["residual.norm2.bias"],
                                   kNormEps));
  }
  Tensor second_convolution() const {
    const UnetMap map = {made().channels / x, made().height};
    return at::conv2d(as_maps(given(kActivated), map), weights["residual.conv2.weight"], {}, 1, 1);
  }
  Tensor features() const {
    const Tensor branch = as_maps(given(kBranch).to(type()), own(made())) +
                          weights["residual.conv2.bias"].reshape({1, -1, 1, 1});
    if (!weights.has("residual.shortcut.weight")) return branch + taken();
    return branch + with_bias(own_channels(as_maps(given(kShortcut), made())), "residual.shortcut")
                        .to(type());
  }
  Tensor qkv() const {
    const Tensor maps = as_maps(given(kFeatures), own(made()));
    return convolution("attention.qkv", group_norm("attention.norm", maps, {made().channels},
                                                   given(kAttentionMoments)));
  }
  Tensor mixed() const {
    const UnetMap map = {3 * made().channels, made().height};
    return attend(with_bias(as_maps(given(kQkv), map), "attention.qkv").to(type()).flatten(2));
  }
  Tensor attended() const {
    return as_maps(given(kFeatures), own(made())) +
           convolution("attention.output", as_maps(given(kMixed), made()), false);
  }
  Tensor resampled() const {
    const Tensor maps = last();
    if (block.step == UnetStep::kDown) return convolution("resample", maps, true, 2);
    return convolution("resample",
                       at::upsample_nearest2d(maps, {2 * maps.size(2), 2 * maps.size(3)}));
  }
  /// Maps that pass by lie one behind another, as they enter.
  Tensor output() const {
    std::vector<Tensor> parts;
    if (const int64_t passing = entering_elements(block.num_passing()); passing > 0)
      parts.push_back(given(kInput).slice(1, 0, passing));
    if (!block.resamples || block.step == UnetStep::kDown) parts.push_back(last().flatten(1));
    if (block.resamples) {
      const UnetMap map = {made().channels, block.leaving.back().height};
      parts.push_back(with_bias(own_channels(as_maps(given(kResampled), map)), "resample")
                          .to(type())
                          .flatten(1));
    }
    if (block.leaves_time) parts.push_back(time());
    return at::cat(parts, 1);
  }
  Tensor enter() const {
    const Tensor image = as_maps(given(kInput).slice(1, 0, unet.image().elements()), unet.image());
    return at::cat(
        {convolution("conv", image, false).flatten(1), linear("time.1", given(kHidden), false)}, 1);
  }
  Tensor predicted() const {
    return convolution("conv",
                       at::silu(group_norm("norm", taken(), taken_channels(), given(kMoments))));
  }

  Tensor make(UnetValue value) const {
    switch (value) {
      case kMoments:
        return moments(taken(), taken_channels());
      case kNormed:
        return normed();
      case kMade:
        return first_convolution();
      case kShortcut:
        return convolution("residual.shortcut", taken());
      case kActivated:
        return activated();
      case kBranch:
        return second_convolution();
      case kFeatures:
        return features();
      case kAttentionMoments:
        return moments(as_maps(given(kFeatures), own(made())), {made().channels});
      case kQkv:
        return qkv();
      case kMixed:
        return mixed();
      case kAttended:
        return attended();
      case kResampled:
        return resampled();
      case kHidden:
        return at::silu(linear("time.0", time(), false));
      case kPredicted:
        return predicted();
      case kOutput:
        if (block.step == UnetStep::kLeave) break;
        return block.step == UnetStep::kEnter ? enter() : output();
      case kInput:
        break;
    }
    throw InternalError(std::string("nothing makes ") + unet_value_name(value) + " of a U-Net");
  }
};

}  // namespace

UnetWeights::UnetWeights(const UnitShape& unit, const std::string& block) {
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < unit.parameters.size(); ++i)
    places[unit.parameters[i].name.substr(block.size() + 1)] = i;
  places_ = std::make_shared<const std::map<std::string, size_t>>(std::move(places));
}

UnetWeights UnetWeights::with(const std::vector<Tensor>& values) const {
  UnetWeights weights = *this;
  weights.values_ = values;
  return weights;
}

const Tensor& UnetWeights::operator[](const std::string& name) const {
  return values_[places_->at(name)];
}

UnetFunctions::UnetFunctions(std::shared_ptr<const Unet> unet, int64_t block, int64_t x, int64_t y)
    : unet_(std::move(unet)), number_(block), x_(x), y_(y), parts_(unet_, block, x, y) {}

Tensor UnetFunctions::make(UnetValue value, const UnetWeights& weights, int64_t place,
                           UnetTensors& known) const {
  Tensor& made = known[static_cast<size_t>(value)];
  if (made.defined()) return made;
  const UnetValueSet sources = parts_.sources(value);
  for (size_t source = 0; source < known.size(); ++source)
    if (sources[source]) make(static_cast<UnetValue>(source), weights, place, known);
  made = Maker{*unet_, block(), number_, x_, y_, place, weights, known}.make(value).flatten(1);
  return made;
}

Tensor UnetFunctions::losses(const UnetWeights& weights, const Tensor& predicted,
                             const Tensor& noise) const {
  const UnetTensors none;
  const Maker maker{*unet_, block(), number_, x_, y_, 0, weights, none};
  const Tensor maps = maker.with_bias(as_maps(predicted, unet_->image()), "conv");
  return (maps.flatten(1).to(noise.scalar_type()) - noise).square();
}

int64_t UnetFunctions::input_elements() const {
  const UnetBlock& b = block();
  int64_t elements = b.takes_time ? unet_->time_width() : 0;
  for (const UnetMap& map : b.entering) elements += map.elements();
  return elements / y_;
}

int64_t UnetFunctions::output_elements() const {
  const UnetBlock& b = block();
  int64_t elements = b.leaves_time ? unet_->time_width() : 0;
  for (const UnetMap& map : b.leaving) elements += map.elements();
  return elements / y_;
}

Tensor step_waves(const std::vector<int64_t>& steps, int64_t width) {
  const Tensor frequencies = at::exp(at::arange(width / 2, at::kDouble) *
                                     (-std::log(kLongestWave) * 2.0 / static_cast<double>(width)));
  const Tensor angles = at::tensor(steps, at::kDouble).unsqueeze(1) * frequencies;
  return at::cat({angles.sin(), angles.cos()}, 1);
}

}  // namespace strait::model
