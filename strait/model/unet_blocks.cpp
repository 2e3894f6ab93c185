#include "strait/model/unet_blocks.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/kernel/normal.h"
#include "strait/model/autograd_block.h"
#include "strait/tensor/scalar_type.h"

namespace strait::model {
namespace {

using at::Tensor;

constexpr double kNormEps = 1e-6;
constexpr double kFirstNoise = 1e-4, kLastNoise = 0.02;  // Ho et al. 2020, section 4
constexpr double kLongestWave = 10'000;                  // of the embedding of time steps

/// Parameters of a block by their names in it.
class Weights {
 public:
  Weights(const std::map<std::string, size_t>& places, const std::vector<Tensor>& parameters)
      : places_(places), parameters_(parameters) {}

  const Tensor& operator[](const std::string& name) const { return parameters_[places_.at(name)]; }
  bool has(const std::string& name) const { return places_.contains(name); }

  Tensor convolution(const std::string& name, const Tensor& maps, int64_t stride = 1) const {
    const Tensor& weight = (*this)[name + ".weight"];
    return at::conv2d(maps, weight, (*this)[name + ".bias"], stride, weight.size(2) / 2);
  }
  Tensor linear(const std::string& name, const Tensor& rows) const {
    return at::linear(rows, (*this)[name + ".weight"], (*this)[name + ".bias"]);
  }
  Tensor norm(const std::string& name, const Tensor& maps) const {
    return at::group_norm(maps, unet_groups(maps.size(1)), (*this)[name + ".weight"],
                          (*this)[name + ".bias"], kNormEps);
  }

 private:
  const std::map<std::string, size_t>& places_;
  const std::vector<Tensor>& parameters_;
};

Tensor residual(const Weights& weights, const std::string& name, const Tensor& maps,
                const Tensor& time) {
  Tensor branch =
      weights.convolution(name + ".conv1", at::silu(weights.norm(name + ".norm1", maps)));
  branch = branch + weights.linear(name + ".time", at::silu(time)).unsqueeze(-1).unsqueeze(-1);
  branch = weights.convolution(name + ".conv2", at::silu(weights.norm(name + ".norm2", branch)));
  const std::string shortcut = name + ".shortcut";
  return branch + (weights.has(shortcut + ".weight") ? weights.convolution(shortcut, maps) : maps);
}

/// Of one head over all pixels.
Tensor attention(const Weights& weights, const std::string& name, const Tensor& maps) {
  const int64_t channels = maps.size(1);
  const std::vector<Tensor> parts =
      weights.convolution(name + ".qkv", weights.norm(name + ".norm", maps)).flatten(2).chunk(3, 1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(channels));
  const Tensor scores = (parts[0].transpose(1, 2).matmul(parts[1]) * scale).softmax(-1);
  const Tensor mixed = parts[2].matmul(scores.transpose(1, 2));
  return maps + weights.convolution(name + ".output", mixed.reshape(maps.sizes()));
}

/// The maps of a value and, behind them, the embedding of the time step.
struct Value {
  std::vector<Tensor> maps;
  Tensor time;
};

Value unpack(const Tensor& flat, const std::vector<UnetMap>& maps, bool has_time) {
  Value value;
  int64_t at = 0;
  for (const UnetMap& map : maps) {
    value.maps.push_back(flat.slice(1, at, at + map.elements())
                             .reshape({flat.size(0), map.channels, map.height, map.height}));
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

/// `input`: the noisy images, and behind each the sines and cosines of its step.
Value enter(const Weights& weights, const Unet& unet, const Tensor& input) {
  const Value given = unpack(input, {unet.image()}, true);
  Value value;
  value.maps = {weights.convolution("conv", given.maps.front())};
  value.time = weights.linear("time.1", at::silu(weights.linear("time.0", given.time)));
  return value;
}

Value run(const Weights& weights, const UnetBlock& block, Value value) {
  Tensor maps = value.maps.back();
  if (block.step == UnetStep::kUp) {
    value.maps.pop_back();
    maps = at::cat({maps, value.maps.back()}, 1);
    value.maps.pop_back();
  }
  maps = residual(weights, "residual", maps, value.time);
  if (block.attention) maps = attention(weights, "attention", maps);
  if (block.step == UnetStep::kMiddle) maps = residual(weights, "behind", maps, value.time);
  if (block.step == UnetStep::kUp && block.resamples)
    maps = weights.convolution("resample",
                               at::upsample_nearest2d(maps, {2 * maps.size(2), 2 * maps.size(3)}));
  value.maps.push_back(maps);
  if (block.step == UnetStep::kDown && block.resamples)
    value.maps.push_back(weights.convolution("resample", maps, 2));
  return value;
}

/// Squared errors of each number of the images, [B, elements].
Tensor leave(const Weights& weights, const UnetBlock& block, const Tensor& input,
             const Tensor& noise) {
  const Tensor maps = unpack(input, block.entering, false).maps.back();
  const Tensor predicted = weights.convolution("conv", at::silu(weights.norm("norm", maps)));
  return (predicted.flatten(1).to(noise.scalar_type()) - noise).square();
}

/// Sines and cosines of a step (Vaswani et al. 2017), of falling frequency.
Tensor step_waves(const std::vector<int64_t>& steps, int64_t width) {
  const Tensor frequencies =
      at::exp(at::arange(width / 2, at::kDouble) * (-std::log(kLongestWave) * 2.0 / double(width)));
  const Tensor angles = at::tensor(steps, at::kDouble).unsqueeze(1) * frequencies;
  return at::cat({angles.sin(), angles.cos()}, 1);
}

/// What a call's images are turned into, and what is asked about them.
class Draws {
 public:
  Draws(const Unet& unet, const Call& call) : unet_(unet), batch_(*call.batch) {
    ensure(batch_.sequences != nullptr, "a U-Net draws noise for numbered sequences");
    for (int64_t row = 0; row < batch_.batch; ++row)
      draws_.push_back(draw_diffusion(unet.options, call.settings->seed, call.settings->training,
                                      batch_.sequences[row]));
  }

  Tensor noise() const {
    const int64_t elements = unet_.image().elements();
    const Tensor all = at::empty({batch_.batch, elements}, at::kDouble);
    for (int64_t row = 0; row < batch_.batch; ++row) {
      kernel::NormalCall<double> call;
      call.key = draws_[static_cast<size_t>(row)].noise_key;
      call.count = elements;
      call.out = all.data_ptr<double>() + row * elements;
      kernel::normal(call);
    }
    return all;
  }

  Tensor noisy_images(const std::vector<double>& kept) const {
    const Tensor levels =
        at::from_blob(const_cast<int32_t*>(batch_.inputs), {batch_.batch, unet_.image().elements()},
                      at::TensorOptions(at::kInt))
            .to(at::kDouble);
    std::vector<int64_t> steps;
    std::vector<double> signal;
    for (const Diffusion& draw : draws_) {
      steps.push_back(draw.step);
      signal.push_back(kept[static_cast<size_t>(draw.step)]);
    }
    const Tensor share = at::tensor(signal, at::kDouble).unsqueeze(1);
    const Tensor images = levels * (2.0 / (kPixelLevels - 1)) - 1.0;
    return at::cat({share.sqrt() * images + (1.0 - share).sqrt() * noise(),
                    step_waves(steps, unet_.options.channels.front())},
                   1);
  }

 private:
  const Unet& unet_;
  const Batch& batch_;
  std::vector<Diffusion> draws_;
};

}  // namespace

Diffusion draw_diffusion(const UnetOptions& options, uint64_t seed, bool training,
                         int64_t sequence) {
  const RandomStream stream(seed, training ? "unet.training" : "unet.validation",
                            static_cast<uint64_t>(sequence));
  return {mix64(stream.key()),
          static_cast<int64_t>(stream.below(0, static_cast<uint64_t>(options.diffusion_steps)))};
}

std::vector<double> kept_signal(int64_t steps) {
  std::vector<double> kept;
  double product = 1.0;
  for (int64_t step = 0; step < steps; ++step) {
    const double along = steps > 1 ? static_cast<double>(step) / static_cast<double>(steps - 1) : 0;
    product *= 1.0 - (kFirstNoise + (kLastNoise - kFirstNoise) * along);
    kept.push_back(product);
  }
  return kept;
}

std::unique_ptr<Block> make_unet_block(const ModelShape& shape, int64_t index, Dtype dtype) {
  const auto at = static_cast<size_t>(index);
  const ModuleChain& chain = *shape.modules;
  const std::shared_ptr<const Unet> unet = chain.unet;
  const UnetBlock& block = unet->blocks.at(at);
  const UnitShape& unit = shape.units[static_cast<size_t>(shape.blocks[at].unit)];
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < unit.parameters.size(); ++i)
    places[unit.parameters[i].name.substr(chain.blocks[at].name.size() + 1)] = i;
  AutogradForm form;
  form.vocabulary = chain.vocabulary;
  form.output_dims = chain.blocks[at].output;
  if (index > 0) form.input_dims = chain.blocks[at - 1].output;
  if (block.step == UnetStep::kEnter) {
    form.input = AutogradInput::kMade;
    form.make_input = [unet, kept = kept_signal(unet->options.diffusion_steps),
                       type = tensor::scalar_type(dtype)](const Call& call) {
      return Draws(*unet, call).noisy_images(kept).to(type);
    };
  }
  if (block.step == UnetStep::kLeave) {
    form.output = AutogradOutput::kLosses;
    const at::ScalarType wide = dtype == Dtype::kFloat64 ? at::kDouble : at::kFloat;
    form.make_target = [unet, wide](const Call& call) {
      return Draws(*unet, call).noise().to(wide);
    };
  }
  return std::make_unique<AutogradBlock>(
      unit, form, dtype,
      [unet, &block, places](const std::vector<Tensor>& parameters,
                             const std::vector<Tensor>& inputs) {
        const Weights weights(places, parameters);
        const Tensor& input = inputs.front();
        if (block.step == UnetStep::kLeave) return leave(weights, block, input, inputs.back());
        const Value value =
            block.step == UnetStep::kEnter
                ? enter(weights, *unet, input)
                : run(weights, block, unpack(input, block.entering, block.takes_time));
        return pack(value, block.leaves_time);
      });
}

}  // namespace strait::model
