#include "strait/codec/qsgd.h"

#include <cmath>
#include <cstring>
#include <span>

#include "strait/codec/element.h"

namespace strait::codec {
namespace {

/// Codes one after another, the lowest bit of a byte first. Begins at a whole byte.
class BitWriter {
 public:
  BitWriter(uint8_t* out, int bits) : out_(out), bits_(bits) {}
  void put(uint32_t code) {
    pending_ |= code << filled_;
    for (filled_ += bits_; filled_ >= 8; filled_ -= 8) flush();
  }
  double largest() const { return (1 << bits_) - 1; }
  /// Zeros up to `end`.
  void finish(const uint8_t* end) {
    while (out_ < end) flush();
  }

 private:
  void flush() {
    *out_++ = static_cast<uint8_t>(pending_);
    pending_ >>= 8;
  }
  uint8_t* out_;
  const int bits_;
  int filled_ = 0;
  uint32_t pending_ = 0;
};

/// Elements that are not finite; the ends of the others as a scale with low as its middle.
template <class T>
int64_t find_scale(const T* x, int64_t count, int bits, BlockScale& scale) {
  float low = 0, high = 0;
  int64_t lost = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = read_float(x + i);
    if (!std::isfinite(value)) {
      ++lost;
      continue;
    }
    const bool first = lost == i;
    low = first ? value : std::min(low, value);
    high = first ? value : std::max(high, value);
  }
  scale.step = qsgd_step(low, high, bits);
  scale.middle = low + 0.0f;  // no -0
  return lost;
}

/// What is added before rounding down, by number of the element in its piece.
struct Rounding {
  bool stochastic;
  Draw draw;
  double operator()(int64_t element) const {
    if (!stochastic) return 0.5;
    return static_cast<double>(draw.bits(static_cast<uint64_t>(element)) >> 11) * 0x1p-53;
  }
};

/// `first`: number of the first element.
template <class T>
void put_codes(std::span<const T> x, int64_t first, const Rounding& rounding,
               const BlockScale& scale, BitWriter& writer) {
  const double most = writer.largest(), low = scale.middle;
  const double inverse = scale.step > 0 ? 1.0 / static_cast<double>(scale.step) : 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float value = read_float(&x[i]);
    const double above = (std::isfinite(value) ? static_cast<double>(value) : 0.0) - low;
    const double level = std::floor(above * inverse + rounding(first + static_cast<int64_t>(i)));
    writer.put(static_cast<uint32_t>(std::clamp(level, 0.0, most)));
  }
}

template <class T>
int64_t encode_as(const EncodeRange& range, const T* x) {
  const CodecSpec& spec = range.spec;
  const Scales<uint8_t> scales(spec, range.encoded, range.elements);
  BitWriter writer(range.encoded + range.begin * spec.bits / 8, spec.bits);
  const Rounding rounding{spec.stochastic, range.draw};
  int64_t lost = 0;
  for (int64_t first = range.begin; first < range.end; first += spec.block) {
    const int64_t count = std::min(spec.block, range.end - first);
    BlockScale scale;
    lost += find_scale(x + (first - range.begin), count, spec.bits, scale);
    scales.put(first / spec.block, scale);
    put_codes(std::span(x + (first - range.begin), static_cast<size_t>(count)), first, rounding,
              scale, writer);
  }
  if (range.end == range.elements)
    writer.finish(range.encoded + payload_bytes(spec, range.elements));
  return lost;
}

/// Code `i`; the byte after its first one may be the scales' first.
uint32_t code_at(const uint8_t* payload, int bits, int64_t i) {
  const int64_t bit = i * bits;
  const uint32_t pair = payload[bit / 8] | uint32_t{payload[bit / 8 + 1]} << 8;
  return pair >> (bit % 8) & ((1u << bits) - 1);
}

template <class T, class Put>
void decode_as(const DecodeRange& range, T* out, const Put& put) {
  const CodecSpec& spec = range.spec;
  const Scales<const uint8_t> scales(spec, range.encoded, range.elements);
  for (int64_t first = range.begin, last; first < range.end; first = last) {
    last = std::min((first / spec.block + 1) * spec.block, range.end);
    const BlockScale scale = scales.get(first / spec.block);
    const double step = scale.step, low = scale.middle;
    for (int64_t i = first; i < last; ++i) {
      const double value = low + code_at(range.encoded, spec.bits, i) * step;
      const double bounded = std::clamp(value, -double{FLT_MAX}, double{FLT_MAX});
      put(out[i - range.begin], static_cast<float>(bounded));
    }
  }
}

template <class T>
void decode_numbers(const DecodeRange& range) {
  T* out = static_cast<T*>(range.out);
  if (range.add)
    decode_as(range, out, [](T& to, float value) { to += static_cast<T>(value); });
  else
    decode_as(range, out, [](T& to, float value) { to = static_cast<T>(value); });
}

}  // namespace

int64_t encode_qsgd(const EncodeRange& range) {
  if (range.dtype == Dtype::kFloat32)
    return encode_as(range, static_cast<const float*>(range.source));
  if (range.dtype == Dtype::kFloat64)
    return encode_as(range, static_cast<const double*>(range.source));
  return encode_as(range, static_cast<const uint16_t*>(range.source));
}

void decode_qsgd(const DecodeRange& range) {
  if (range.dtype == Dtype::kFloat32) return decode_numbers<float>(range);
  if (range.dtype == Dtype::kFloat64) return decode_numbers<double>(range);
  decode_as(range, static_cast<uint16_t*>(range.out),
            [](uint16_t& to, float value) { to = to_bfloat16(value); });
}

}  // namespace strait::codec
