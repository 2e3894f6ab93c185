#include "strait/compression/layer_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "strait/base/errors.h"

namespace strait::compression {
namespace {

using Layers = std::span<const LayerCandidates>;

constexpr double kUnreachable = std::numeric_limits<double>::infinity();

void require_candidate(const Candidate& candidate) {
  ensure(candidate.bytes >= 0, "layer choice: negative bytes");
  ensure(std::isfinite(candidate.error) && candidate.error >= 0,
         "layer choice: an error is finite and not negative");
}

void require_layers(Layers layers) {
  for (const LayerCandidates& layer : layers) {
    ensure(layer.reference < layer.candidates.size(), "layer choice: no reference");
    for (const Candidate& candidate : layer.candidates) require_candidate(candidate);
  }
}

void require_options(const LayerChoiceOptions& options) {
  ensure(std::isfinite(options.alpha) && options.alpha >= 0, "layer choice: alpha");
  ensure(options.error_steps >= 1, "layer choice: error_steps");
}

/// The candidates `chosen`, summed up.
LayerChoice summed(Layers layers, std::vector<size_t> chosen) {
  LayerChoice choice{std::move(chosen)};
  for (size_t l = 0; l < layers.size(); ++l) {
    const Candidate& candidate = layers[l].candidates[choice.chosen[l]];
    choice.bytes += candidate.bytes;
    choice.error += candidate.error;
  }
  return choice;
}

LayerChoice uniform_choice(Layers layers) {
  std::vector<size_t> chosen;
  for (const LayerCandidates& layer : layers) chosen.push_back(layer.reference);
  return summed(layers, std::move(chosen));
}

LayerChoice choice_of_least_errors(Layers layers) {
  const auto by_error = [](const Candidate& a, const Candidate& b) { return a.error < b.error; };
  std::vector<size_t> chosen;
  for (const auto& [candidates, reference] : layers)
    chosen.push_back(static_cast<size_t>(
        std::min_element(candidates.begin(), candidates.end(), by_error) - candidates.begin()));
  return summed(layers, std::move(chosen));
}

/// Least bytes of the first layers by the steps of error that they may use, a row per number of
/// layers. Bytes are doubles, whole and exact below 2^53, because their minimum is one instruction.
class Table {
 public:
  Table(Layers layers, double budget, int64_t steps)
      : layers_(layers),
        budget_(budget),
        steps_(steps),
        least_((layers.size() + 1) * static_cast<size_t>(steps + 1), kUnreachable) {
    std::fill_n(least_.begin(), steps + 1, 0.0);
    for (size_t l = 0; l < layers.size(); ++l)
      for (const Candidate& candidate : layers[l].candidates) offer(candidate, row(l), row(l + 1));
  }

  /// The choice of least bytes that uses at most `capacity` steps, if there is one.
  std::optional<std::vector<size_t>> best(int64_t capacity) const {
    if (row(layers_.size())[capacity] == kUnreachable) return std::nullopt;
    std::vector<size_t> chosen(layers_.size());
    for (size_t l = layers_.size(); l-- > 0;) {
      chosen[l] = taken(l, capacity);
      capacity -= *steps_of(layers_[l].candidates[chosen[l]]);
    }
    return chosen;
  }

 private:
  const double* row(size_t layers) const {
    return least_.data() + layers * static_cast<size_t>(steps_ + 1);
  }
  double* row(size_t layers) { return least_.data() + layers * static_cast<size_t>(steps_ + 1); }

  /// The error in whole steps, rounded up; nothing: beyond the budget.
  std::optional<int64_t> steps_of(const Candidate& candidate) const {
    if (candidate.error > budget_) return std::nullopt;
    if (candidate.error == 0.0) return 0;
    const double exact = candidate.error / (budget_ / static_cast<double>(steps_));
    return std::min(static_cast<int64_t>(std::ceil(exact)), steps_);
  }

  void offer(const Candidate& candidate, const double* before, double* after) const {
    const std::optional<int64_t> used = steps_of(candidate);
    if (!used) return;
    const double bytes = static_cast<double>(candidate.bytes);
    for (int64_t step = *used; step <= steps_; ++step)
      after[step] = std::min(after[step], before[step - *used] + bytes);
  }

  /// The first candidate that makes the least bytes of `layer` and those before it.
  size_t taken(size_t layer, int64_t capacity) const {
    const std::vector<Candidate>& candidates = layers_[layer].candidates;
    for (size_t c = 0; c < candidates.size(); ++c) {
      const std::optional<int64_t> used = steps_of(candidates[c]);
      if (!used || *used > capacity) continue;
      const double bytes = static_cast<double>(candidates[c].bytes);
      if (row(layer)[capacity - *used] + bytes == row(layer + 1)[capacity]) return c;
    }
    throw InternalError("layer choice: a table without the choice that made it");
  }

  Layers layers_;
  double budget_;
  int64_t steps_;
  std::vector<double> least_;
};

/// Keeps the smaller of two choices, the first where they are equal.
void keep_smaller(std::optional<LayerChoice>& kept, LayerChoice other, double budget) {
  if (other.error <= budget && (!kept || other.bytes < kept->bytes)) kept = std::move(other);
}

}  // namespace

LayerChoice choose_per_layer(Layers layers, const LayerChoiceOptions& options) {
  require_layers(layers);
  require_options(options);
  const LayerChoice uniform = uniform_choice(layers), least = choice_of_least_errors(layers);
  const double budget = options.alpha * uniform.error;
  if (least.error > budget) return least;
  std::optional<LayerChoice> kept;
  keep_smaller(kept, uniform, budget);
  keep_smaller(kept, least, budget);
  const Table table(layers, budget, options.error_steps);
  // Sums of fp64 may pass the budget by a rounding; a step less never does.
  for (int64_t spare = 0; spare <= 1; ++spare)
    if (auto chosen = table.best(options.error_steps - spare))
      keep_smaller(kept, summed(layers, std::move(*chosen)), budget);
  return *kept;
}

}  // namespace strait::compression
