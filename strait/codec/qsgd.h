// Max-min QSGD: levels at equal distances from the smallest to the largest element of a block, in 1
// to 8 bits. Plain code, because codes of 3 bits fill no lanes. Source: Alistarh et al., QSGD
// (arXiv 1610.02132), in the form of torch_cgx: level = floor((x - low) / step + u), u = 1/2 or
// drawn from [0, 1) for every element.
#pragma once

#include <algorithm>
#include <cfloat>

#include "strait/codec/ranges.h"

namespace strait::codec {

/// Distance of two levels of a block; 0: all elements are equal, and decoded exactly. Differences
/// are fp64, because those of fp32 numbers may be beyond fp32.
inline float qsgd_step(float low, float high, int bits) {
  if (low == high) return 0.0f;
  const double range = static_cast<double>(high) - static_cast<double>(low);
  const double step = range / ((1 << bits) - 1);
  return static_cast<float>(std::clamp(step, double{FLT_MIN}, double{FLT_MAX}));
}

/// As encode_range and decode_range.
int64_t encode_qsgd(const EncodeRange& range);
void decode_qsgd(const DecodeRange& range);

}  // namespace strait::codec
