// The codecs again, one element at a time in the plainest form and without the library's code: what
// every instruction set must equal bit for bit. fp8 is found by search in the table of all its
// numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "strait/codec/codec.h"

namespace strait::codec::plain {

struct Scale {
  float step, inverse, middle, shift;
};

inline float half_range(const CodecSpec& spec) { return spec.kind == CodecKind::kInt8 ? 128 : 8; }

/// All sizes of an 8-bit float, by code; finite ones only.
inline std::vector<double> fp8_table(CodecKind kind) {
  const bool four = kind == CodecKind::kFp8E4m3;
  std::vector<double> table;
  for (int code = 0; code < (four ? 0x7f : 0x7c); ++code) {
    const int mantissa = four ? code & 7 : code & 3, exponent = four ? code >> 3 : code >> 2;
    const double fraction = mantissa / (four ? 8.0 : 4.0);
    const int bias = four ? 7 : 15;
    table.push_back(exponent == 0 ? std::ldexp(fraction, 1 - bias)
                                  : std::ldexp(1 + fraction, exponent - bias));
  }
  return table;
}

inline Scale scale_of(const CodecSpec& spec, const std::vector<float>& finite) {
  float low = 0, high = 0;
  if (!finite.empty()) {
    low = *std::min_element(finite.begin(), finite.end());
    high = *std::max_element(finite.begin(), finite.end());
  }
  const float most = static_cast<float>(0x1p128 - 0x1p106);  // so that no product overflows
  const float half = spec.kind == CodecKind::kInt4 ? 8 : 128;
  if (spec.asymmetric) {
    const float shift = spec.paper_divisor ? 0 : 0.5f;
    if (low == high) return {0, 0, low == 0 ? 0 : low, shift};
    low = std::max(low, -most), high = std::min(high, most);
    const float steps = spec.paper_divisor ? half : half - 0.5f;
    const float step = std::max((high / 2 - low / 2) / steps, FLT_MIN);
    return {step, 1 / step, high / 2 + low / 2, shift};
  }
  const float largest = std::min(std::max(std::abs(low), std::abs(high)), most);
  if (spec.kind == CodecKind::kE3m0)
    return {std::max(std::max(std::abs(low), std::abs(high)), 0x1p-119f), 0, 0, 0};
  float divisor = spec.paper_divisor ? half : half - 1;
  if (spec.kind == CodecKind::kFp8E4m3) divisor = 448;
  if (spec.kind == CodecKind::kFp8E5m2) divisor = 57344;
  const float step = std::max(largest / divisor, FLT_MIN);
  return {step, 1 / step, 0, 0};
}

inline uint8_t fp8_code(CodecKind kind, float x) {
  const std::vector<double> table = fp8_table(kind);
  const double size = std::abs(static_cast<double>(x));
  size_t best = 0;
  for (size_t code = 1; code < table.size(); ++code) {
    const double here = std::abs(table[code] - size), there = std::abs(table[best] - size);
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80u : 0u));
}

/// Half to even, saturating, by arithmetic on the value.
inline uint16_t bfloat16_code(float x) {
  const double size = std::abs(static_cast<double>(x));
  uint16_t code = 0;
  if (size > 0) {
    const int exponent = std::max(std::ilogb(size), -126);
    const double units = std::nearbyint(std::ldexp(size, 7 - exponent));  // 128 to 256
    const double kept = std::min(std::ldexp(units, exponent - 7), 0x1.fep127);
    code = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(kept)) >> 16);
  }
  return static_cast<uint16_t>(code | (std::signbit(x) ? 0x8000 : 0));
}

inline int integer_code(const CodecSpec& spec, const Scale& scale, float x) {
  const float centred = x - scale.middle;
  const float scaled = centred * scale.inverse;
  const float level = std::nearbyint(scaled - scale.shift);
  return static_cast<int>(std::clamp(level, -half_range(spec), half_range(spec) - 1));
}

/// The powers of two one by one, from s on: the first whose lower border is not above |x|.
inline int e3m0_code(const Scale& scale, float x) {
  const float border = scale.step * static_cast<float>(std::sqrt(0.5));
  int power = 7;
  while (power > 0 && std::abs(x) < std::ldexp(border, power - 7)) --power;
  return power + (std::signbit(x) ? 8 : 0);
}

inline int nibble_of(const CodecSpec& spec, const Scale& scale, float x) {
  if (spec.kind == CodecKind::kE3m0) return e3m0_code(scale, x);
  return integer_code(spec, scale, x) & 15;
}

inline void encode_block(const CodecSpec& spec, const std::vector<float>& x, int64_t first,
                         int64_t last, std::vector<uint8_t>& piece) {
  const int64_t count = static_cast<int64_t>(x.size());
  std::vector<float> finite;
  for (int64_t i = first; i < last; ++i)
    if (std::isfinite(x[i])) finite.push_back(x[i]);
  const Scale scale = scale_of(spec, finite);
  uint8_t* metadata = piece.data() + payload_bytes(spec, count);
  std::memcpy(metadata + 4 * (first / spec.block), &scale.step, 4);
  if (spec.asymmetric)
    std::memcpy(metadata + 4 * (num_blocks(spec, count) + first / spec.block), &scale.middle, 4);
  for (int64_t i = first; i < last; ++i) {
    const float value = std::isfinite(x[i]) ? x[i] : 0;
    if (spec.kind == CodecKind::kInt8)
      piece[i] = static_cast<uint8_t>(integer_code(spec, scale, value));
    else if (spec.kind == CodecKind::kInt4 || spec.kind == CodecKind::kE3m0)
      piece[i / 2] =
          static_cast<uint8_t>(piece[i / 2] | nibble_of(spec, scale, value) << (i % 2 * 4));
    else
      piece[i] = fp8_code(spec.kind, value * scale.inverse);
  }
}

/// Level by level and bit by bit: the level is the number of borders between levels that x reaches.
inline void encode_qsgd_block(const CodecSpec& spec, const std::vector<float>& x, int64_t first,
                              int64_t last, std::vector<uint8_t>& piece) {
  const int64_t count = static_cast<int64_t>(x.size()), block = first / spec.block;
  double low = 0, high = 0;
  bool any = false;
  for (int64_t i = first; i < last; ++i) {
    if (!std::isfinite(x[i])) continue;
    low = any ? std::min<double>(low, x[i]) : x[i];
    high = any ? std::max<double>(high, x[i]) : x[i];
    any = true;
  }
  const int levels = (1 << spec.bits) - 1;
  const double wanted = std::max<double>((high - low) / levels, FLT_MIN);
  const float step = low == high ? 0 : static_cast<float>(std::min<double>(wanted, FLT_MAX));
  const float least = static_cast<float>(low == 0 ? 0 : low);
  const double inverse = step > 0 ? 1 / static_cast<double>(step) : 0;
  uint8_t* metadata = piece.data() + (count * spec.bits + 63) / 64 * 8;
  std::memcpy(metadata + 4 * block, &step, 4);
  std::memcpy(metadata + 4 * ((count + spec.block - 1) / spec.block + block), &least, 4);
  for (int64_t i = first; i < last; ++i) {
    const double above = (std::isfinite(x[i]) ? static_cast<double>(x[i]) : 0.0) - low;
    int level = 0;
    while (level < levels && above * inverse + 0.5 >= level + 1) ++level;
    for (int bit = 0; bit < spec.bits; ++bit)
      if (level >> bit & 1) {
        const int64_t at = i * spec.bits + bit;
        piece[at / 8] = static_cast<uint8_t>(piece[at / 8] | 1 << at % 8);
      }
  }
}

inline float decode_qsgd_one(const CodecSpec& spec, const std::vector<uint8_t>& piece,
                             int64_t count, int64_t i) {
  int level = 0;
  for (int bit = 0; bit < spec.bits; ++bit) {
    const int64_t at = i * spec.bits + bit;
    level += (piece[at / 8] >> at % 8 & 1) << bit;
  }
  const uint8_t* metadata = piece.data() + (count * spec.bits + 63) / 64 * 8;
  float step, least;
  std::memcpy(&step, metadata + 4 * (i / spec.block), 4);
  std::memcpy(&least, metadata + 4 * ((count + spec.block - 1) / spec.block + i / spec.block), 4);
  const double value = static_cast<double>(least) + level * static_cast<double>(step);
  return static_cast<float>(std::clamp<double>(value, -FLT_MAX, FLT_MAX));
}

inline std::vector<uint8_t> encode(const CodecSpec& spec, const std::vector<float>& x) {
  const int64_t count = static_cast<int64_t>(x.size());
  std::vector<uint8_t> piece(static_cast<size_t>(encoded_bytes(spec, count)));
  for (int64_t i = 0; i < count && spec.block == 0; ++i) {
    const uint16_t code = std::isfinite(x[i]) ? bfloat16_code(x[i]) : uint16_t{0};
    std::memcpy(piece.data() + 2 * i, &code, 2);
  }
  for (int64_t first = 0; first < count && spec.block > 0; first += spec.block)
    (spec.kind == CodecKind::kQsgd ? encode_qsgd_block : encode_block)(
        spec, x, first, std::min(first + spec.block, count), piece);
  return piece;
}

inline float decode_one(const CodecSpec& spec, const std::vector<uint8_t>& piece, int64_t count,
                        int64_t i) {
  if (spec.kind == CodecKind::kBfloat16) {
    uint16_t code;
    std::memcpy(&code, piece.data() + 2 * i, 2);
    return std::bit_cast<float>(uint32_t{code} << 16);
  }
  if (spec.kind == CodecKind::kQsgd) return decode_qsgd_one(spec, piece, count, i);
  const uint8_t* metadata = piece.data() + payload_bytes(spec, count);
  float step = 0, middle = 0;
  std::memcpy(&step, metadata + 4 * (i / spec.block), 4);
  if (spec.asymmetric)
    std::memcpy(&middle, metadata + 4 * (num_blocks(spec, count) + i / spec.block), 4);
  if (spec.kind == CodecKind::kFp8E4m3 || spec.kind == CodecKind::kFp8E5m2) {
    const float size = static_cast<float>(fp8_table(spec.kind)[piece[i] & 0x7f]);
    return (piece[i] & 0x80 ? -size : size) * step;
  }
  if (spec.kind == CodecKind::kE3m0) {
    const int code = (i % 2 == 0 ? piece[i / 2] : piece[i / 2] >> 4) & 15;
    const float size = code % 8 == 0 ? 0.0f : std::ldexp(1.0f, code % 8 - 7);
    return (code >= 8 ? -size : size) * step;
  }
  int code = static_cast<int8_t>(piece[spec.kind == CodecKind::kInt8 ? i : i / 2]);
  if (spec.kind == CodecKind::kInt4) {
    code = (i % 2 == 0 ? piece[i / 2] : piece[i / 2] >> 4) & 15;
    if (code >= 8) code -= 16;
  }
  const float shift = spec.asymmetric && !spec.paper_divisor ? 0.5f : 0.0f;
  const float scaled = (static_cast<float>(code) + shift) * step;
  return scaled + middle;
}

}  // namespace strait::codec::plain
