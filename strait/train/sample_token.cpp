#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/train/generate.h"

namespace strait::train {
namespace {

/// How many of the most likely tokens, in order, are kept.
size_t kept_tokens(const std::vector<double>& weights, const std::vector<int32_t>& order,
                   const Sampling& sampling) {
  size_t kept = order.size();
  if (sampling.top_k > 0) kept = std::min(kept, static_cast<size_t>(sampling.top_k));
  if (sampling.top_p >= 1.0) return kept;
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += weights[order[i]];
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += weights[order[i]];
    if (sum >= sampling.top_p * total) return i + 1;
  }
  return kept;
}

/// A comparison with NaN is false, so one NaN would make any token the most likely.
void require_numbers(std::span<const double> logits) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](double logit) {
    return !(logit < std::numeric_limits<double>::infinity());
  });
  if (bad != logits.end())
    throw NonFinite(fmt::format(
        "the model gives token {} the logit {}: its weights are damaged or had diverged; "
        "sample an earlier checkpoint",
        bad - logits.begin(), *bad));
}

}  // namespace

int32_t sample_token(std::span<const double> all, const Sampling& sampling, uint64_t draw) {
  ensure(!all.empty(), "sample_token: no logits");
  const auto tokens = static_cast<size_t>(sampling.tokens);
  const auto logits = all.first(tokens > 0 ? std::min(tokens, all.size()) : all.size());
  require_numbers(logits);
  const auto most = std::max_element(logits.begin(), logits.end());
  if (sampling.temperature <= 0) return static_cast<int32_t>(most - logits.begin());
  std::vector<double> weights;
  for (const double logit : logits)
    weights.push_back(std::exp((logit - *most) / sampling.temperature));
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return weights[a] > weights[b]; });
  const size_t kept = kept_tokens(weights, order, sampling);
  double total = 0;
  for (size_t i = 0; i < kept; ++i) total += weights[order[i]];
  double left = RandomStream(sampling.seed, "sample").uniform(draw) * total;
  for (size_t i = 0; i < kept; ++i) {
    left -= weights[order[i]];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace strait::train
