// The scale of one block, from its smallest and largest finite element. One definition for the
// kernels and for the stated bounds.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "strait/codec/codec.h"

namespace strait::codec {

/// Levels of an integer codec: codes lowest..highest; step = range / divisor.
struct IntegerRange {
  float divisor, lowest, highest;
};

inline IntegerRange integer_range(const CodecSpec& spec) {
  const float half = spec.kind == CodecKind::kInt8 ? 128.0f : 8.0f;
  const float divisor = (spec.asymmetric ? 2 * half : half) - (spec.paper_divisor ? 0.0f : 1.0f);
  return {divisor, -half, half - 1};
}

/// The largest |x| / step: divisor of the symmetric codecs.
inline float symmetric_divisor(const CodecSpec& spec) {
  if (spec.kind == CodecKind::kFp8E4m3) return 448.0f;
  if (spec.kind == CodecKind::kFp8E5m2) return 57344.0f;
  return integer_range(spec).divisor;
}

/// code = round((x - middle) * inverse - shift), decoded = (code + shift) * step + middle, where
/// shift is 1/2 for the asymmetric codec without +paper (an even number of levels around the
/// middle) and 0 for all others.
struct BlockScale {
  float step = 0.0f, inverse = 0.0f, middle = 0.0f;
};

inline float level_shift(const CodecSpec& spec) {
  return spec.asymmetric && !spec.paper_divisor ? 0.5f : 0.0f;
}

/// Ends beyond this are taken for it, so that rounding of step and product cannot reach infinity.
inline constexpr float kLargestEnd = 0x1.fffff8p127f;

// A step of at least the smallest normal number keeps step and inverse finite and free of
// denormals.
inline BlockScale symmetric_scale(float largest, float divisor) {
  const float step = std::max(std::min(largest, kLargestEnd) / divisor, FLT_MIN);
  return {step, 1.0f / step, 0.0f};
}

/// Keeps every power of two of a block a normal number.
inline constexpr float kSmallestE3m0Scale = 0x1p-119f;

/// 1 / sqrt(2): between two powers of two where log2 is the measure.
inline constexpr float kSqrtHalf = 0.70710678f;

/// The largest size itself: its powers of two are exact, and no inverse is needed.
inline BlockScale e3m0_scale(float largest) {
  return {std::max(largest, kSmallestE3m0Scale), 0.0f, 0.0f};
}

// Halves, because the difference of the ends could overflow.
inline BlockScale asymmetric_scale(float low, float high, float divisor) {
  if (low == high) return {0.0f, 0.0f, low + 0.0f};  // no -0
  low = std::max(low, -kLargestEnd);
  high = std::min(high, kLargestEnd);
  const float step = std::max((high * 0.5f - low * 0.5f) / (divisor * 0.5f), FLT_MIN);
  return {step, 1.0f / step, high * 0.5f + low * 0.5f};
}

}  // namespace strait::codec
