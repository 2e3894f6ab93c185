#include "strait/codec/ranges.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "strait/base/errors.h"
#include "strait/codec/block_scale.h"

namespace strait::codec {
namespace {

float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t to_bfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded =
      std::min((bits & 0x7fffffffu) + 0x7fffu + ((bits >> 16) & 1), 0x7f7fffffu);
  return static_cast<uint16_t>((rounded | (bits & 0x80000000u)) >> 16);
}

float load_value(const void* data, Dtype dtype, int64_t i) {
  if (dtype == Dtype::kFloat32) return static_cast<const float*>(data)[i];
  if (dtype == Dtype::kFloat64) return static_cast<float>(static_cast<const double*>(data)[i]);
  return from_bfloat16(static_cast<const uint16_t*>(data)[i]);
}

void store_value(const DecodeRange& range, int64_t i, float value) {
  if (range.dtype == Dtype::kFloat32) {
    float& out = static_cast<float*>(range.out)[i - range.begin];
    out = range.add ? out + value : value;
  } else if (range.dtype == Dtype::kFloat64) {
    double& out = static_cast<double*>(range.out)[i - range.begin];
    out = range.add ? out + value : value;
  } else {
    static_cast<uint16_t*>(range.out)[i - range.begin] = to_bfloat16(value);
  }
}

struct Fp8Form {
  int mantissa, bias;
  float largest;
};

Fp8Form fp8_form(CodecKind kind) {
  return kind == CodecKind::kFp8E4m3 ? Fp8Form{3, 7, 448.0f} : Fp8Form{2, 15, 57344.0f};
}

uint8_t to_fp8(Fp8Form form, float value) {
  const float size = std::min(std::abs(value), form.largest);
  const int exponent = size == 0 ? 1 - form.bias : std::max(std::ilogb(size), 1 - form.bias);
  // In units of the last place of its binade; a carry into the next binade is right by itself.
  const int units = static_cast<int>(std::nearbyint(std::ldexp(size, form.mantissa - exponent)));
  const int code = ((exponent + form.bias - 1) << form.mantissa) + units;
  return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80 : 0));
}

float from_fp8(Fp8Form form, uint8_t code) {
  const int field = (code & 0x7f) >> form.mantissa, low = code & ((1 << form.mantissa) - 1);
  const int units = field == 0 ? low : low + (1 << form.mantissa);
  const float size =
      std::ldexp(static_cast<float>(units), std::max(field, 1) - form.bias - form.mantissa);
  return (code & 0x80) ? -size : size;
}

bool is_integer(const CodecSpec& spec) {
  return spec.kind == CodecKind::kInt8 || spec.kind == CodecKind::kInt4;
}

BlockScale scale_of(const EncodeRange& range, int64_t begin, int64_t end) {
  float low = 0, high = 0;
  bool any = false;
  for (int64_t i = begin; i < end; ++i) {
    const float x = load_value(range.source, range.dtype, i - range.begin);
    if (!std::isfinite(x)) continue;
    low = any ? std::min(low, x) : x;
    high = any ? std::max(high, x) : x;
    any = true;
  }
  if (range.spec.asymmetric) return asymmetric_scale(low, high, integer_range(range.spec).divisor);
  return symmetric_scale(std::max(std::abs(low), std::abs(high)), symmetric_divisor(range.spec));
}

void put_code(const EncodeRange& range, const BlockScale& scale, int64_t i, float x) {
  const CodecSpec& spec = range.spec;
  const float scaled = (x - scale.middle) * scale.inverse - level_shift(spec);
  if (!is_integer(spec)) {
    range.encoded[i] = to_fp8(fp8_form(spec.kind), scaled);
    return;
  }
  const IntegerRange levels = integer_range(spec);
  const int code =
      static_cast<int>(std::nearbyint(std::clamp(scaled, levels.lowest, levels.highest)));
  if (spec.kind == CodecKind::kInt8) {
    range.encoded[i] = static_cast<uint8_t>(code);
    return;
  }
  uint8_t& byte = range.encoded[i / 2];
  byte = i % 2 == 0 ? static_cast<uint8_t>(code & 15)
                    : static_cast<uint8_t>((byte & 15) | ((code & 15) << 4));
}

void put_scale(const EncodeRange& range, const BlockScale& scale, int64_t block) {
  uint8_t* steps = range.encoded + payload_bytes(range.spec, range.elements);
  std::memcpy(steps + 4 * block, &scale.step, 4);
  if (range.spec.asymmetric)
    std::memcpy(steps + 4 * (num_blocks(range.spec, range.elements) + block), &scale.middle, 4);
}

BlockScale get_scale(const DecodeRange& range, int64_t block) {
  const uint8_t* steps = range.encoded + payload_bytes(range.spec, range.elements);
  BlockScale scale;
  std::memcpy(&scale.step, steps + 4 * block, 4);
  if (range.spec.asymmetric)
    std::memcpy(&scale.middle, steps + 4 * (num_blocks(range.spec, range.elements) + block), 4);
  return scale;
}

float get_value(const DecodeRange& range, const BlockScale& scale, int64_t i) {
  const CodecSpec& spec = range.spec;
  if (!is_integer(spec)) return from_fp8(fp8_form(spec.kind), range.encoded[i]) * scale.step;
  const int code = spec.kind == CodecKind::kInt8
                       ? static_cast<int8_t>(range.encoded[i])
                       : ((range.encoded[i / 2] >> (i % 2 * 4) & 15) ^ 8) - 8;
  return (static_cast<float>(code) + level_shift(spec)) * scale.step + scale.middle;
}

}  // namespace

int64_t encode_range(const EncodeRange& range) {
  int64_t lost = 0;
  const int64_t block = std::max<int64_t>(range.spec.block, 1);
  const bool blocks = range.spec.block > 0;
  for (int64_t first = range.begin; first < range.end; first += block) {
    const int64_t last = std::min(first + block, range.end);
    BlockScale scale;
    if (blocks) scale = scale_of(range, first, last);
    if (blocks) put_scale(range, scale, first / block);
    for (int64_t i = first; i < last; ++i) {
      float x = load_value(range.source, range.dtype, i - range.begin);
      if (!std::isfinite(x)) ++lost, x = 0;
      if (blocks) {
        put_code(range, scale, i, x);
      } else {
        const uint16_t bits = to_bfloat16(x);
        std::memcpy(range.encoded + 2 * i, &bits, 2);
      }
    }
  }
  return lost;
}

void decode_range(const DecodeRange& range) {
  for (int64_t i = range.begin; i < range.end; ++i) {
    if (range.spec.kind == CodecKind::kBfloat16) {
      uint16_t bits;
      std::memcpy(&bits, range.encoded + 2 * i, 2);
      store_value(range, i, from_bfloat16(bits));
    } else {
      store_value(range, i, get_value(range, get_scale(range, i / range.spec.block), i));
    }
  }
}

int64_t range_unit(const CodecSpec& spec) {
  if (spec.block == 0) return 2;
  return spec.block % 2 == 0 || spec.kind != CodecKind::kInt4 ? spec.block : 2 * spec.block;
}

}  // namespace strait::codec
