// One element at a time: what the vector kernels do with the ends of blocks and with blocks that
// hold numbers that are not finite. Same bits as the vectors.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "strait/codec/block_scale.h"
#include "strait/codec/ranges.h"

namespace strait::codec {

inline float read_float(const float* x) { return *x; }
inline float read_float(const double* x) { return static_cast<float>(*x); }
inline float read_float(const uint16_t* x) { return std::bit_cast<float>(uint32_t{*x} << 16); }

/// Half to even; numbers that would become infinite become the largest finite one.
inline uint16_t to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), size = bits & 0x7fffffffu;
  const uint32_t rounded = std::min(size + 0x7fffu + ((bits >> 16) & 1), 0x7f7fffffu);
  return static_cast<uint16_t>((rounded | (bits & 0x80000000u)) >> 16);
}

/// Layout of a small float: sign, exponent, mantissa.
struct Fp8Form {
  int mantissa_bits, bias;
  float largest;
};
constexpr Fp8Form fp8_form(CodecKind kind) {
  return kind == CodecKind::kFp8E4m3 ? Fp8Form{3, 7, 448.0f} : Fp8Form{2, 15, 57344.0f};
}

/// 2^(1 - bias): the smallest normal number.
inline float smallest_normal(Fp8Form form) {
  return std::bit_cast<float>(static_cast<uint32_t>(128 - form.bias) << 23);
}
/// The float whose last place is the last place of the subnormal numbers: adding it rounds to them.
inline float subnormal_rounder(Fp8Form form) {
  return std::bit_cast<float>(static_cast<uint32_t>(128 - form.bias + 23 - form.mantissa_bits)
                              << 23);
}

/// Exponent and mantissa, half to even; saturates.
inline uint32_t small_float_bits(Fp8Form form, float value) {
  const float size = std::min(std::abs(value), form.largest);
  const int dropped = 23 - form.mantissa_bits;
  const uint32_t bits = std::bit_cast<uint32_t>(size);
  uint32_t code;
  if (size < smallest_normal(form)) {
    const float rounder = subnormal_rounder(form);
    code = std::bit_cast<uint32_t>(size + rounder) - std::bit_cast<uint32_t>(rounder);
  } else {
    const uint32_t rounded = bits + ((1u << (dropped - 1)) - 1) + ((bits >> dropped) & 1);
    code = (rounded >> dropped) - (static_cast<uint32_t>(127 - form.bias) << form.mantissa_bits);
  }
  return code;
}

inline uint8_t to_fp8(Fp8Form form, float value) {
  return static_cast<uint8_t>(small_float_bits(form, value) | (std::signbit(value) ? 0x80u : 0u));
}

inline float from_fp8(Fp8Form form, uint8_t code) {
  const uint32_t low = code & 0x7fu;
  const float unit = smallest_normal(form) / static_cast<float>(1 << form.mantissa_bits);
  float size = static_cast<float>(low) * unit;
  if (low >> form.mantissa_bits != 0)
    size = std::bit_cast<float>((low << (23 - form.mantissa_bits)) +
                                (static_cast<uint32_t>(127 - form.bias) << 23));
  return (code & 0x80) ? -size : size;
}

constexpr Fp8Form kFloat16Form{10, 15, 65504.0f};
/// From here on numbers round to fp16's infinity.
constexpr float kFloat16Infinite = 65520.0f;

/// Half to even. Precondition: |value| < kFloat16Infinite.
inline uint16_t to_float16(float value) {
  return static_cast<uint16_t>(small_float_bits(kFloat16Form, value) |
                               (std::signbit(value) ? 0x8000u : 0u));
}

inline float from_float16(uint16_t code) {
  const uint32_t low = code & 0x7fffu, sign = uint32_t{code & 0x8000u} << 16;
  if (low >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (low << 13));
  float size = static_cast<float>(low) * 0x1p-24f;
  if (low >= 0x400u) size = std::bit_cast<float>((low << 13) + (uint32_t{127 - 15} << 23));
  return sign ? -size : size;
}

constexpr bool is_integer(CodecKind kind) {
  return kind == CodecKind::kInt8 || kind == CodecKind::kInt4;
}

/// Two codes in a byte.
constexpr bool has_nibbles(CodecKind kind) {
  return kind == CodecKind::kInt4 || kind == CodecKind::kE3m0;
}

/// The smallest size that e3m0 takes for `scale` itself, as bits: scale / sqrt(2). That for
/// scale / 2^k has an exponent smaller by k and the same mantissa.
inline int32_t e3m0_border_bits(float scale) { return std::bit_cast<int32_t>(scale * kSqrtHalf); }

/// Precondition: |value| <= scale, which is at least kSmallestE3m0Scale.
inline uint8_t to_e3m0(float value, float scale) {
  const int32_t bits = std::bit_cast<int32_t>(value);
  const int32_t binades = ((bits & 0x7fffffff) - e3m0_border_bits(scale)) >> 23;  // <= 0
  return static_cast<uint8_t>(std::max(7 + binades, 0) | (bits < 0 ? 8 : 0));
}

/// For a scale of 1.
inline float from_e3m0(uint8_t code) {
  const uint32_t power = code & 7u, sign = uint32_t{code & 8u} << 28;
  return std::bit_cast<float>(power == 0 ? sign : sign | (power + 120) << 23);
}

/// A second fp32 number per block.
constexpr bool has_middles(const CodecSpec& spec) {
  return spec.asymmetric || spec.kind == CodecKind::kQsgd;
}

/// Where the scales of a piece stand: unaligned fp32, `Byte` const or not.
template <class Byte>
struct Scales {
  Byte* steps;
  Byte* middles;  // null: symmetric; qsgd: the smallest elements

  Scales(const CodecSpec& spec, Byte* encoded, int64_t elements)
      : steps(encoded + payload_bytes(spec, elements)),
        middles(has_middles(spec) ? steps + 4 * num_blocks(spec, elements) : nullptr) {}
  void put(int64_t block, const BlockScale& scale) const {
    std::memcpy(steps + 4 * block, &scale.step, sizeof(float));
    if (middles) std::memcpy(middles + 4 * block, &scale.middle, sizeof(float));
  }
  BlockScale get(int64_t block) const {
    BlockScale scale;
    std::memcpy(&scale.step, steps + 4 * block, sizeof(float));
    if (middles) std::memcpy(&scale.middle, middles + 4 * block, sizeof(float));
    return scale;
  }
};

inline uint8_t code_of(const CodecSpec& spec, const BlockScale& scale, float x) {
  if (spec.kind == CodecKind::kE3m0) return to_e3m0(x, scale.step);
  const float scaled = (x - scale.middle) * scale.inverse - level_shift(spec);
  if (!is_integer(spec.kind)) return to_fp8(fp8_form(spec.kind), scaled);
  const IntegerRange levels = integer_range(spec);
  const float level = std::nearbyint(std::clamp(scaled, levels.lowest, levels.highest));
  return static_cast<uint8_t>(static_cast<int>(level));
}

/// Writes element `i` of a piece. Nibbles: elements of a byte in order, the even one first.
inline void put_element(const CodecSpec& spec, uint8_t* encoded, const BlockScale& scale, int64_t i,
                        float x) {
  const uint8_t code = code_of(spec, scale, x);
  if (!has_nibbles(spec.kind))
    encoded[i] = code;
  else if (i % 2 == 0)
    encoded[i / 2] = code & 15;
  else
    encoded[i / 2] = static_cast<uint8_t>((encoded[i / 2] & 15) | (code << 4));
}

inline float get_element(const CodecSpec& spec, const uint8_t* encoded, const BlockScale& scale,
                         int64_t i) {
  const uint8_t code = has_nibbles(spec.kind) ? encoded[i / 2] >> (i % 2 * 4) & 15 : encoded[i];
  if (spec.kind == CodecKind::kE3m0) return from_e3m0(code) * scale.step;
  if (!is_integer(spec.kind)) return from_fp8(fp8_form(spec.kind), code) * scale.step;
  const int level = spec.kind == CodecKind::kInt8 ? static_cast<int8_t>(code) : (code ^ 8) - 8;
  return (static_cast<float>(level) + level_shift(spec)) * scale.step + scale.middle;
}

}  // namespace strait::codec
