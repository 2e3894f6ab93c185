#include "strait/strategy/adapt/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/compression/low_rank.h"
#include "strait/config/keys.h"

namespace strait::strategy {
namespace {

constexpr const char* kAdapt = "compression.adapt";

[[noreturn]] void refuse(const Run& run, const std::string& key, const std::string& is,
                         const std::string& why, const std::string& nearest) {
  refuse_key(run, key,
             fmt::format("{} = {} cannot take effect: {}; the nearest valid choice is {}", key, is,
                         why, nearest));
}

/// Keys of a choice that is not made.
void require_nothing(const Run& run) {
  const CompressionOptions usual;
  const LgrecoOptions usual_lgreco;
  const auto require = [&](const char* key, auto is, auto was) {
    if (is != was)
      refuse(run, key, fmt::format("{}", is), "nothing is chosen without compression.adapt",
             fmt::format("to remove it, or {} = \"lgreco\"", kAdapt));
  };
  require("compression.adapt_every_steps", run.compression.adapt_every_steps,
          usual.adapt_every_steps);
  require("lgreco.alpha", run.lgreco.alpha, usual_lgreco.alpha);
  require("lgreco.start_step", run.lgreco.start_step, usual_lgreco.start_step);
  require("lgreco.gather_steps", run.lgreco.gather_steps, usual_lgreco.gather_steps);
}

/// The codec of a family that is nearest to one of none.
std::string nearest_family(const codec::CodecSpec& spec) {
  using codec::CodecKind;
  codec::CodecSpec nearest = codec::parse_codec("qsgd4");
  if (spec.kind == CodecKind::kRandomK) {
    nearest = spec;
    nearest.kind = CodecKind::kTopK;
  } else if (spec.kind == CodecKind::kInt8 || spec.kind == CodecKind::kFp8E4m3 ||
             spec.kind == CodecKind::kFp8E5m2) {
    nearest = codec::parse_codec("qsgd8");
  }
  nearest.error_feedback = spec.error_feedback;
  return codec::print_codec(nearest);
}

bool has_settings(const codec::CodecSpec& spec) {
  return spec.kind == codec::CodecKind::kQsgd || spec.kind == codec::CodecKind::kTopK ||
         codec::is_low_rank(spec);
}

void check_family(const Run& run) {
  const codec::CodecSpec spec = codec::parse_codec(run.compression.codec, "compression.codec");
  if (has_settings(spec)) return;
  refuse(run, kAdapt, "\"lgreco\"",
         fmt::format("compression.codec = \"{}\" has no settings to choose from",
                     run.compression.codec),
         fmt::format("compression.codec = \"{}\"", nearest_family(spec)));
}

std::vector<codec::CodecSpec> bits_like(codec::CodecSpec spec) {
  std::vector<codec::CodecSpec> settings;
  for (spec.bits = 1; spec.bits <= 8; ++spec.bits) settings.push_back(spec);
  return settings;
}

std::vector<codec::CodecSpec> densities_like(codec::CodecSpec spec) {
  std::vector<codec::CodecSpec> settings;
  const double uniform = spec.density;
  for (int power = -3; power <= 3; ++power) {
    spec.density = std::min(1.0, std::ldexp(uniform, power));
    if (settings.empty() || settings.back() != spec) settings.push_back(spec);
  }
  return settings;
}

}  // namespace

int64_t AdaptPolicy::next_choice(int64_t step) const {
  return step <= start ? start : start + (step - start + every - 1) / every * every;
}

bool AdaptPolicy::chooses_after(int64_t step) const {
  return adapts() && next_choice(step) == step;
}

bool AdaptPolicy::gathers(int64_t step) const {
  return adapts() && step > next_choice(step) - gather;
}

bool AdaptPolicy::begins(int64_t step) const {
  return gathers(step) && (step == 1 || step == next_choice(step) - gather + 1);
}

AdaptPolicy resolve_adapt_policy(const Run& run) {
  if (run.compression.adapt == "none") {
    require_nothing(run);
    return {};
  }
  check_family(run);
  if (run.optimizer.in_backward)
    refuse(run, kAdapt, "\"lgreco\"", "gradients are freed in the backward pass",
           "optimizer.in_backward = false");
  const AdaptPolicy policy{run.lgreco.alpha, run.lgreco.start_step,
                           run.compression.adapt_every_steps, run.lgreco.gather_steps};
  if (policy.gather > policy.every)
    refuse(run, "lgreco.gather_steps", std::to_string(policy.gather),
           fmt::format("choices are made every {} steps", policy.every),
           std::to_string(policy.every));
  return policy;
}

std::vector<AdaptedLayer> adapted_layers(const ModelShape& shape,
                                         const std::vector<codec::Runs>& uniform) {
  std::vector<AdaptedLayer> layers;
  for (size_t unit = 0; unit < uniform.size(); ++unit) {
    const UnitShape& of = shape.units[unit];
    int64_t first = 0;
    for (size_t run = 0; run < uniform[unit].runs.size(); ++run) {
      const codec::Run& here = uniform[unit].runs[run];
      const auto parameter = std::ranges::find(of.parameters, first, &ParameterShape::offset);
      if (here.codec.kind != codec::CodecKind::kNone)
        layers.push_back({parameter->name, static_cast<int64_t>(unit), run, first, here,
                          parameter->dims.front()});
      first += here.elements;
    }
  }
  return layers;
}

std::vector<codec::CodecSpec> settings_of(const AdaptedLayer& layer) {
  const codec::CodecSpec& uniform = layer.uniform.codec;
  if (uniform.kind == codec::CodecKind::kQsgd) return bits_like(uniform);
  if (uniform.kind == codec::CodecKind::kTopK) return densities_like(uniform);
  std::vector<codec::CodecSpec> settings;
  if (codec::is_low_rank(uniform))
    for (const int64_t rank : compression::ranks_like(layer.rows, layer.columns(), uniform.rank))
      settings.emplace_back(uniform).rank = rank;
  return settings;
}

LayerSettings uniform_settings(const std::vector<AdaptedLayer>& layers) {
  LayerSettings settings;
  for (const AdaptedLayer& layer : layers) {
    const std::vector<codec::CodecSpec> all = settings_of(layer);
    settings.push_back(std::ranges::find(all, layer.uniform.codec) - all.begin());
  }
  return settings;
}

std::vector<codec::Runs> with_settings(std::vector<codec::Runs> uniform,
                                       const std::vector<AdaptedLayer>& layers,
                                       const LayerSettings& settings) {
  ensure(layers.size() == settings.size(), "adapt: a setting for each layer");
  for (size_t l = 0; l < layers.size(); ++l)
    uniform[static_cast<size_t>(layers[l].unit)].runs[layers[l].run].codec =
        settings_of(layers[l]).at(static_cast<size_t>(settings[l]));
  return uniform;
}

std::vector<std::string> setting_names(const std::vector<AdaptedLayer>& layers,
                                       const LayerSettings& settings) {
  ensure(layers.size() == settings.size(), "adapt: a setting for each layer");
  std::vector<std::string> names;
  for (size_t l = 0; l < layers.size(); ++l)
    names.push_back(
        codec::print_codec(settings_of(layers[l]).at(static_cast<size_t>(settings[l]))));
  return names;
}

uint64_t settings_hash(const LayerSettings& settings) {
  uint64_t hash = hash_name("layer settings");
  for (const int64_t setting : settings) hash = mix64(hash ^ static_cast<uint64_t>(setting));
  return hash;
}

int64_t layer_bytes(const AdaptedLayer& layer, const codec::CodecSpec& setting, int64_t parts,
                    Dtype gradient) {
  if (codec::is_low_rank(setting))
    return 2 * (parts - 1) * (layer.rows + layer.columns()) * setting.rank * dtype_bytes(gradient);
  const int64_t grain = (layer.uniform.elements + parts - 1) / parts;
  return 2 * parts * (parts - 1) * codec::encoded_bytes(setting, grain);
}

namespace {

double coding_error(const codec::CodecSpec& setting, const codec::ConstValues& gradient,
                    int64_t parts) {
  const int64_t grain = (gradient.elements + parts - 1) / parts;
  double squares = 0;
  std::vector<uint8_t> piece;
  std::vector<double> lost;
  for (int64_t at = 0; at < gradient.elements; at += grain) {
    const int64_t count = std::min(grain, gradient.elements - at);
    const auto* from = static_cast<const char*>(gradient.data) + at * dtype_bytes(gradient.dtype);
    piece.resize(static_cast<size_t>(codec::encoded_bytes(setting, count)));
    lost.resize(static_cast<size_t>(count));
    // What is not finite is seen by the step, which keeps such gradients out of the sum.
    static_cast<void>(codec::encode(setting, {from, gradient.dtype, count}, piece));
    codec::decode(setting, piece, {lost.data(), Dtype::kFloat64, count});
    for (size_t i = 0; i < lost.size(); ++i) {
      const double is = gradient.dtype == Dtype::kFloat64
                            ? reinterpret_cast<const double*>(from)[i]
                            : static_cast<double>(reinterpret_cast<const float*>(from)[i]);
      squares += (is - lost[i]) * (is - lost[i]);
    }
  }
  return std::sqrt(squares);
}

template <class T>
std::vector<double> losses_by_rank(const AdaptedLayer& layer, int64_t most, const void* gradient) {
  const compression::LowRankShape shape{layer.rows, layer.columns(), most};
  const std::span<const T> matrix(static_cast<const T*>(gradient),
                                  static_cast<size_t>(layer.uniform.elements));
  return compression::losses_by_rank<T>(shape, matrix, hash_name(layer.name));
}

}  // namespace

std::vector<double> layer_errors(const AdaptedLayer& layer, const codec::ConstValues& gradient,
                                 int64_t parts) {
  const std::vector<codec::CodecSpec> settings = settings_of(layer);
  std::vector<double> errors;
  if (!codec::is_low_rank(layer.uniform.codec)) {
    for (const codec::CodecSpec& setting : settings)
      errors.push_back(coding_error(setting, gradient, parts));
    return errors;
  }
  const int64_t most = settings.back().rank;
  const std::vector<double> losses = gradient.dtype == Dtype::kFloat64
                                         ? losses_by_rank<double>(layer, most, gradient.data)
                                         : losses_by_rank<float>(layer, most, gradient.data);
  for (const codec::CodecSpec& setting : settings)
    errors.push_back(losses[static_cast<size_t>(setting.rank - 1)]);
  return errors;
}

SettingsChoice choose_settings(const std::vector<AdaptedLayer>& layers, int64_t parts, double alpha,
                               const GradientOfLayer& gradient) {
  std::vector<compression::LayerCandidates> all;
  const LayerSettings uniform = uniform_settings(layers);
  SettingsChoice choice;
  for (size_t l = 0; l < layers.size(); ++l) {
    compression::LayerCandidates& of = all.emplace_back();
    of.reference = static_cast<size_t>(uniform[l]);
    const codec::ConstValues values = gradient(layers[l]);
    const std::vector<codec::CodecSpec> settings = settings_of(layers[l]);
    const std::vector<double> errors = layer_errors(layers[l], values, parts);
    for (size_t s = 0; s < settings.size(); ++s)
      of.candidates.push_back(
          {layer_bytes(layers[l], settings[s], parts, values.dtype), errors[s]});
    choice.uniform_bytes += of.candidates[of.reference].bytes;
    choice.allowed_error += of.candidates[of.reference].error;
  }
  choice.allowed_error *= alpha;
  const compression::LayerChoice chosen = compression::choose_per_layer(all, {.alpha = alpha});
  choice.settings.assign(chosen.chosen.begin(), chosen.chosen.end());
  choice.bytes = chosen.bytes;
  choice.error = chosen.error;
  return choice;
}

}  // namespace strait::strategy
