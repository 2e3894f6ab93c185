#include "strait/model/unet_layers.h"

#include <cmath>
#include <utility>

namespace strait::model {
namespace {

using at::Tensor;

constexpr double kNormEps = 1e-6;
constexpr double kLongestWave = 10'000;  // of the embedding of time steps

Tensor convolution(const UnetWeights& weights, const std::string& name, const Tensor& maps,
                   int64_t stride = 1) {
  const Tensor& weight = weights[name + ".weight"];
  return at::conv2d(maps, weight, weights[name + ".bias"], stride, weight.size(2) / 2);
}

Tensor linear(const UnetWeights& weights, const std::string& name, const Tensor& rows) {
  return at::linear(rows, weights[name + ".weight"], weights[name + ".bias"]);
}

Tensor group_norm(const UnetWeights& weights, const std::string& name, const Tensor& maps,
                  int64_t groups) {
  return at::group_norm(maps, groups, weights[name + ".weight"], weights[name + ".bias"], kNormEps);
}

Tensor normed(const UnetWeights& weights, const std::string& name, const Tensor& maps,
              int64_t groups) {
  return at::silu(group_norm(weights, name, maps, groups));
}

Tensor normed(const UnetWeights& weights, const std::string& name, const Tensor& maps) {
  return normed(weights, name, maps, unet_groups(maps.size(1)));
}

/// Of one head over all pixels.
Tensor attention(const UnetWeights& weights, const Tensor& maps) {
  const int64_t channels = maps.size(1);
  const Tensor rows = group_norm(weights, "attention.norm", maps, unet_groups(channels));
  const std::vector<Tensor> parts =
      convolution(weights, "attention.qkv", rows).flatten(2).chunk(3, 1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(channels));
  const Tensor scores = (parts[0].transpose(1, 2).matmul(parts[1]) * scale).softmax(-1);
  const Tensor mixed = parts[2].matmul(scores.transpose(1, 2));
  return maps + convolution(weights, "attention.output", mixed.reshape(maps.sizes()));
}

/// The maps of a value and, behind them, the embedding of the time step.
struct Value {
  std::vector<Tensor> maps;
  Tensor time;
};

Tensor as_maps(const Tensor& flat, UnetMap map) {
  return flat.reshape({flat.size(0), map.channels, map.height, map.height});
}

Value unpack(const Tensor& flat, const std::vector<UnetMap>& maps, bool has_time) {
  Value value;
  int64_t at = 0;
  for (const UnetMap& map : maps) {
    value.maps.push_back(as_maps(flat.slice(1, at, at + map.elements()), map));
    at += map.elements();
  }
  if (has_time) value.time = flat.slice(1, at);
  return value;
}

Tensor pack(const Value& value, bool has_time) {
  std::vector<Tensor> parts;
  for (const Tensor& map : value.maps) parts.push_back(map.flatten(1));
  if (has_time) parts.push_back(value.time);
  return at::cat(parts, 1);
}

/// What the residual block of a block takes.
Tensor features(const UnetBlock& block, const Value& value) {
  const Tensor& last = value.maps.back();
  return block.step == UnetStep::kUp ? at::cat({last, value.maps[value.maps.size() - 2]}, 1) : last;
}

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

Tensor enter(const UnetWeights& weights, const Unet& unet, const Tensor& input) {
  const Value given = unpack(input, {unet.image()}, true);
  Value value;
  value.maps = {convolution(weights, "conv", given.maps.front())};
  value.time = linear(weights, "time.1", at::silu(linear(weights, "time.0", given.time)));
  return pack(value, true);
}

Tensor normed_input(const UnetWeights& weights, const UnetBlock& block, const Tensor& input) {
  const Value value = unpack(input, block.entering, block.takes_time);
  return at::cat(
      {normed(weights, "residual.norm1", features(block, value)).flatten(1), at::silu(value.time)},
      1);
}

Tensor branch(const UnetWeights& weights, const Unet& unet, int64_t block, int64_t x,
              const Tensor& normed_features) {
  const UnetMap map = unet.residual_input(block);
  const Tensor maps = as_maps(normed_features.slice(1, 0, map.elements()), map);
  const Tensor time = normed_features.slice(1, map.elements());
  Tensor made = convolution(weights, "residual.conv1", maps) +
                linear(weights, "residual.time", time).unsqueeze(-1).unsqueeze(-1);
  made = normed(weights, "residual.norm2", made, unet_groups(unet.branch(block).channels) / x);
  return at::conv2d(made, weights["residual.conv2.weight"], {}, 1, 1).flatten(1);
}

Tensor join(const UnetWeights& weights, const UnetBlock& block, const Tensor& input,
            const Tensor& branch) {
  Value value = unpack(input, block.entering, block.takes_time);
  const Tensor taken = features(block, value);
  const UnetMap made = {block.channels, taken.size(2)};
  const Tensor& bias = weights["residual.conv2.bias"];
  const bool same = !weights.has("residual.shortcut.weight");
  Tensor maps = as_maps(branch.to(input.scalar_type()), made) + bias.reshape({1, -1, 1, 1}) +
                (same ? taken : convolution(weights, "residual.shortcut", taken));
  if (block.attention) maps = attention(weights, maps);
  if (block.step == UnetStep::kUp) value.maps.resize(value.maps.size() - 2);
  if (block.step == UnetStep::kMiddle && !block.keeps_input) value.maps.pop_back();
  if (block.step == UnetStep::kUp && block.resamples)
    maps = convolution(weights, "resample",
                       at::upsample_nearest2d(maps, {2 * maps.size(2), 2 * maps.size(3)}));
  value.maps.push_back(maps);
  if (block.step == UnetStep::kDown && block.resamples)
    value.maps.push_back(convolution(weights, "resample", maps, 2));
  return pack(value, block.leaves_time);
}

UnetPiece piece_of(const std::string& parameter) {
  const auto is_of = [&](const char* name) { return parameter.starts_with(name); };
  if (is_of("residual.norm1.")) return UnetPiece::kNorm;
  const bool shared = is_of("residual.conv1.") || is_of("residual.time.") ||
                      is_of("residual.norm2.") || parameter == "residual.conv2.weight";
  return shared ? UnetPiece::kBranch : UnetPiece::kJoin;
}

Tensor leave(const UnetWeights& weights, const UnetBlock& block, const Tensor& input,
             const Tensor& noise) {
  const Tensor maps = unpack(input, block.entering, false).maps.back();
  const Tensor predicted = convolution(weights, "conv", normed(weights, "norm", maps));
  return (predicted.flatten(1).to(noise.scalar_type()) - noise).square();
}

Tensor step_waves(const std::vector<int64_t>& steps, int64_t width) {
  const Tensor frequencies = at::exp(at::arange(width / 2, at::kDouble) *
                                     (-std::log(kLongestWave) * 2.0 / static_cast<double>(width)));
  const Tensor angles = at::tensor(steps, at::kDouble).unsqueeze(1) * frequencies;
  return at::cat({angles.sin(), angles.cos()}, 1);
}

}  // namespace strait::model
