#include "strait/model/rotary_angles.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace strait::model {
namespace {

/// Linear, or as Llama 3.1 does, by how often the frequency turns in the original context.
double stretched(const RopeOptions& options, double frequency) {
  if (options.original_context == 1) return frequency / options.factor;
  const double turns =
      static_cast<double>(options.original_context) * frequency / (2.0 * std::numbers::pi);
  const double low = options.low_frequency_factor, high = options.high_frequency_factor;
  const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
  return (1.0 - kept) * frequency / options.factor + kept * frequency;
}

template <class W>
std::vector<W> make_table(const RopeOptions& rope, int64_t context, int64_t head_width) {
  const std::vector<double> frequencies = rotary_frequencies(rope, head_width);
  std::vector<W> table(static_cast<size_t>(context * head_width));
  W* to = table.data();
  for (int64_t position = 0; position < context; ++position, to += head_width) {
    for (int64_t i = 0; i < head_width / 2; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<size_t>(i)];
      to[i] = static_cast<W>(std::cos(angle));
      to[i + head_width / 2] = static_cast<W>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace

std::vector<double> rotary_frequencies(const RopeOptions& options, int64_t head_width) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_width / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_width);
    frequencies.push_back(stretched(options, std::pow(options.theta, exponent)));
  }
  return frequencies;
}

RotaryAngles::RotaryAngles(const ShapeOptions& options, const RopeOptions& rope, Dtype dtype)
    : head_width_(options.head_elements()) {
  if (dtype == Dtype::kFloat64) {
    wide_ = make_table<double>(rope, options.context, head_width_);
  } else {
    single_ = make_table<float>(rope, options.context, head_width_);
  }
}

}  // namespace strait::model
