// L-GreCo in training: which settings a layer may have, when they are chosen, and the choice
// itself. Source: Alimohammadi et al., L-GreCo (arXiv 2210.17357); the choice is that of
// compression/layer_choice.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strait/codec/runs.h"
#include "strait/compression/layer_choice.h"
#include "strait/config/run.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// When settings are chosen: at the end of steps start, start + every, ..., from the sum of the
/// gradients of the last `gather` of them. Steps are counted from 1. every = 0: never.
struct AdaptPolicy {
  double alpha = 1.0;
  int64_t start = 0, every = 0, gather = 0;
  bool adapts() const { return every > 0; }
  bool chooses_after(int64_t step) const;
  /// Whether the gradient of a step counts, and is the first that does.
  bool gathers(int64_t step) const;
  bool begins(int64_t step) const;

 private:
  int64_t next_choice(int64_t step) const;
};

/// Errors: UserError with the nearest valid choice for what cannot take effect.
AdaptPolicy resolve_adapt_policy(const Run& run);

/// One encoded parameter.
struct AdaptedLayer {
  std::string name;  // "blocks.0.attention.qkv.weight"
  int64_t unit = 0;
  size_t run = 0;     // of its unit
  int64_t first = 0;  // element of the unit
  codec::Run uniform;
  int64_t rows = 1;
  int64_t columns() const { return uniform.elements / rows; }
};
/// What a layer may have instead of the uniform setting, itself included, from the fewest bytes to
/// the most: qsgd 1 to 8 bits; topk an eighth to eight times the density; powersgd ranks_like.
std::vector<codec::CodecSpec> settings_of(const AdaptedLayer& layer);
std::vector<AdaptedLayer> adapted_layers(const ModelShape& shape,
                                         const std::vector<codec::Runs>& uniform);

/// What is chosen: per layer the number of one of settings_of.
using LayerSettings = std::vector<int64_t>;
LayerSettings uniform_settings(const std::vector<AdaptedLayer>& layers);
/// The runs of all units with these settings.
std::vector<codec::Runs> with_settings(std::vector<codec::Runs> uniform,
                                       const std::vector<AdaptedLayer>& layers,
                                       const LayerSettings& settings);
/// "qsgd3/512", per layer.
std::vector<std::string> setting_names(const std::vector<AdaptedLayer>& layers,
                                       const LayerSettings& settings);
/// Equal for equal choices.
uint64_t settings_hash(const LayerSettings& settings);

/// Bytes that all ranks together send of a layer in a step, both hops or both sums. `gradient`: the
/// type of its numbers, and so of factors.
int64_t layer_bytes(const AdaptedLayer& layer, const codec::CodecSpec& setting, int64_t parts,
                    Dtype gradient);
/// Norms of what the settings_of a layer lose of it: cut into parts as it is sent, or factors after
/// a few power iterations (losses_by_rank).
std::vector<double> layer_errors(const AdaptedLayer& layer, const codec::ConstValues& gradient,
                                 int64_t parts);

/// The numbers of a layer's gradient; the memory stays until the next call.
using GradientOfLayer = std::function<codec::ConstValues(const AdaptedLayer&)>;

struct SettingsChoice {
  LayerSettings settings;
  int64_t bytes = 0, uniform_bytes = 0;  // of a step, all ranks
  double error = 0, allowed_error = 0;   // alpha times that of the uniform settings
};
/// The dynamic program over all layers. A layer without any gradient loses nothing in any setting,
/// and so takes the one of fewest bytes.
SettingsChoice choose_settings(const std::vector<AdaptedLayer>& layers, int64_t parts, double alpha,
                               const GradientOfLayer& gradient);

}  // namespace strait::strategy
