// Cosines and sines of rotary position embedding, one table per kind of block of a model.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "strait/base/dtype.h"
#include "strait/shape/options.h"

namespace strait::model {

/// Radians per position of each pair of a head (head_width / 2 of them), stretched as RopeOptions
/// states.
std::vector<double> rotary_frequencies(const RopeOptions& options, int64_t head_width);

/// Computed in fp64 and rounded once: fp64 for a model in fp64, otherwise fp32. Holds
/// options.context * head_width elements. Immutable.
class RotaryAngles {
 public:
  RotaryAngles(const ShapeOptions& options, const RopeOptions& rope, Dtype dtype);
  /// [head_width / 2] of a position below options.context; W as the constructor's dtype wants it.
  template <class W>
  const W* cosines(int64_t position) const {
    return table<W>() + position * head_width_;
  }
  template <class W>
  const W* sines(int64_t position) const {
    return cosines<W>(position) + head_width_ / 2;
  }

 private:
  template <class W>
  const W* table() const {
    if constexpr (std::is_same_v<W, double>) {
      return wide_.data();
    } else {
      return single_.data();
    }
  }

  int64_t head_width_;
  std::vector<float> single_;
  std::vector<double> wide_;
};

}  // namespace strait::model
