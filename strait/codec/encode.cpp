// Encoding, compiled once per instruction set. Two passes over a block, the second one in the first
// cache: its range, then its codes.
#include "strait/codec/ranges.h"
#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/codec/encode.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "strait/base/errors.h"
#include "strait/codec/element.h"
#include "strait/codec/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::codec::HWY_NAMESPACE {

/// The ends of a block; `lost` elements are not finite.
struct Ends {
  float low = 0.0f, high = 0.0f;
  int64_t lost = 0;
};

/// Over the finite elements alone, one by one.
template <class T>
Ends finite_ends(const T* x, int64_t count) {
  Ends ends;
  for (int64_t i = 0; i < count; ++i) {
    const float value = read_float(x + i);
    if (!std::isfinite(value)) {
      ++ends.lost;
      continue;
    }
    const bool first = ends.lost == i;
    ends.low = first ? value : std::min(ends.low, value);
    ends.high = first ? value : std::max(ends.high, value);
  }
  return ends;
}

#if HWY_TARGET == HWY_SCALAR

template <class T>
Ends symmetric_ends(const T* x, int64_t count) {
  return finite_ends(x, count);
}
template <class T>
Ends asymmetric_ends(const T* x, int64_t count) {
  return finite_ends(x, count);
}
template <CodecKind kKind, bool kAsymmetric, class T>
int64_t encode_vectors(const EncodeRange&, const BlockScale&, const T*, int64_t, int64_t) {
  return 0;
}
template <class T>
int64_t bfloat16_vectors(const T*, uint16_t*, int64_t, int64_t&) {
  return 0;
}

#else

/// -largest and largest.
template <class T>
HWY_ATTR Ends symmetric_ends(const T* x, int64_t count) {
  const Signed d;
  auto first = hn::Zero(d), second = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    first = hn::Max(first, size_bits(load_floats(x + i)));
    second = hn::Max(second, size_bits(load_floats(x + i + kLanes)));
  }
  int32_t bits = hn::GetLane(hn::MaxOfLanes(d, hn::Max(first, second)));
  for (; i < count; ++i)
    bits = std::max(bits, std::bit_cast<int32_t>(read_float(x + i)) & 0x7fffffff);
  if (bits >= kInfinityBits) return finite_ends(x, count);
  const float largest = std::bit_cast<float>(bits);
  return {-largest, largest, 0};
}

template <class T>
HWY_ATTR Ends asymmetric_ends(const T* x, int64_t count) {
  const Floats d;
  const Signed di;
  const float start = read_float(x);
  auto low = hn::Set(d, start), high = low;
  auto sizes = hn::Zero(di);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto value = load_floats(x + i);
    low = hn::Min(low, value);
    high = hn::Max(high, value);
    sizes = hn::Max(sizes, size_bits(value));
  }
  Ends ends{hn::GetLane(hn::MinOfLanes(d, low)), hn::GetLane(hn::MaxOfLanes(d, high)), 0};
  int32_t bits = hn::GetLane(hn::MaxOfLanes(di, sizes));
  for (; i < count; ++i) {
    const float value = read_float(x + i);
    bits = std::max(bits, std::bit_cast<int32_t>(value) & 0x7fffffff);
    ends.low = std::min(ends.low, value);
    ends.high = std::max(ends.high, value);
  }
  if (bits >= kInfinityBits || !std::isfinite(start)) return finite_ends(x, count);
  return ends;
}

/// Codes of one vector, in 32-bit lanes.
template <CodecKind kKind, bool kAsymmetric>
HWY_INLINE SignedVector codes_of(FloatVector x, const BlockScale& scale, FloatVector shift) {
  const Floats d;
  if constexpr (kAsymmetric) x = hn::Sub(x, hn::Set(d, scale.middle));
  auto scaled = hn::Mul(x, hn::Set(d, scale.inverse));
  if constexpr (kAsymmetric) scaled = hn::Sub(scaled, shift);
  if constexpr (!is_integer(kKind)) return to_fp8_codes<kKind>(scaled);
  constexpr float kHalf = kKind == CodecKind::kInt8 ? 128.0f : 8.0f;
  const auto kept = hn::Min(hn::Max(scaled, hn::Set(d, -kHalf)), hn::Set(d, kHalf - 1));
  return hn::NearestInt(kept);
}

/// One vector's codes at element i of the payload; int4: i is even.
template <CodecKind kKind>
HWY_INLINE void store_codes(SignedVector codes, uint8_t* payload, int64_t i) {
  if constexpr (kKind == CodecKind::kInt8) {
    const hn::Rebind<int8_t, Floats> narrow;
    hn::StoreU(hn::DemoteTo(narrow, codes), narrow, reinterpret_cast<int8_t*>(payload + i));
  } else if constexpr (kKind == CodecKind::kInt4) {
    // Even elements are the low halves of 64-bit lanes.
    const hn::Repartition<uint64_t, Signed> pairs;
    const hn::Rebind<uint8_t, decltype(pairs)> narrow;
    const auto nibbles = hn::BitCast(pairs, hn::And(codes, hn::Set(Signed(), 15)));
    hn::StoreU(hn::TruncateTo(narrow, hn::Or(nibbles, hn::ShiftRight<28>(nibbles))), narrow,
               payload + i / 2);
  } else {
    const hn::Rebind<uint8_t, Floats> narrow;
    hn::StoreU(hn::DemoteTo(narrow, codes), narrow, payload + i);
  }
}

/// The whole vectors of a block of finite elements; returns how many elements that are.
template <CodecKind kKind, bool kAsymmetric, class T>
HWY_ATTR int64_t encode_vectors(const EncodeRange& range, const BlockScale& scale, const T* x,
                                int64_t first, int64_t last) {
  const auto shift = hn::Set(Floats(), level_shift(range.spec));
  const int64_t count = last - first, ahead = std::min(range.end - last, range.spec.block);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    if (i < ahead) hwy::Prefetch(x + count + i);
    store_codes<kKind>(codes_of<kKind, kAsymmetric>(load_floats(x + i), scale, shift),
                       range.encoded, first + i);
  }
  return i;
}

/// The whole vectors of `count` elements; counts those that are not finite in `lost`.
template <class T>
HWY_ATTR int64_t bfloat16_vectors(const T* x, uint16_t* out, int64_t count, int64_t& lost) {
  const Signed d;
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const auto value = load_floats(x + i);
    const auto finite = hn::Lt(size_bits(value), hn::Set(d, kInfinityBits));
    sum = hn::Sub(sum, hn::VecFromMask(d, hn::Not(finite)));
    store_bfloat16(hn::IfThenElseZero(finite, to_bfloat16_bits(value)), out + i);
  }
  lost += hn::GetLane(hn::SumOfLanes(d, sum));
  return i;
}

#endif  // HWY_SCALAR

/// Elements [first, last), one block; x points to element `first`.
template <CodecKind kKind, bool kAsymmetric, class T>
int64_t encode_block(const EncodeRange& range, const T* x, int64_t first, int64_t last) {
  const CodecSpec& spec = range.spec;
  const int64_t count = last - first;
  const Ends ends = kAsymmetric ? asymmetric_ends(x, count) : symmetric_ends(x, count);
  const BlockScale scale =
      kAsymmetric ? asymmetric_scale(ends.low, ends.high, integer_range(spec).divisor)
                  : symmetric_scale(std::max(-ends.low, ends.high), symmetric_divisor(spec));
  put_scale(range, scale, first / spec.block);
  int64_t i = 0;
  if (ends.lost == 0 && (kKind != CodecKind::kInt4 || first % 2 == 0))
    i = encode_vectors<kKind, kAsymmetric>(range, scale, x, first, last);
  for (; i < count; ++i) {
    const float value = read_float(x + i);
    put_element(spec, range.encoded, scale, first + i, std::isfinite(value) ? value : 0.0f);
  }
  return ends.lost;
}

template <CodecKind kKind, bool kAsymmetric, class T>
int64_t encode_blocks(const EncodeRange& range, const T* x) {
  int64_t lost = 0;
  for (int64_t first = range.begin; first < range.end; first += range.spec.block) {
    const int64_t last = std::min(first + range.spec.block, range.end);
    lost += encode_block<kKind, kAsymmetric>(range, x + (first - range.begin), first, last);
  }
  return lost;
}

template <class T>
int64_t encode_bfloat16(const EncodeRange& range, const T* x) {
  const int64_t count = range.end - range.begin;
  uint16_t* out = reinterpret_cast<uint16_t*>(range.encoded + 2 * range.begin);
  int64_t lost = 0;
  for (int64_t i = bfloat16_vectors(x, out, count, lost); i < count; ++i) {
    const float value = read_float(x + i);
    const bool finite = std::isfinite(value);
    const uint16_t bits = finite ? to_bfloat16(value) : uint16_t{0};
    std::memcpy(out + i, &bits, sizeof(bits));
    lost += !finite;
  }
  return lost;
}

template <class T>
int64_t encode_values(const EncodeRange& range, const T* x) {
  switch (range.spec.kind) {
    case CodecKind::kBfloat16:
      return encode_bfloat16(range, x);
    case CodecKind::kInt8:
      return range.spec.asymmetric ? encode_blocks<CodecKind::kInt8, true>(range, x)
                                   : encode_blocks<CodecKind::kInt8, false>(range, x);
    case CodecKind::kInt4:
      return range.spec.asymmetric ? encode_blocks<CodecKind::kInt4, true>(range, x)
                                   : encode_blocks<CodecKind::kInt4, false>(range, x);
    case CodecKind::kFp8E4m3:
      return encode_blocks<CodecKind::kFp8E4m3, false>(range, x);
    case CodecKind::kFp8E5m2:
      return encode_blocks<CodecKind::kFp8E5m2, false>(range, x);
    case CodecKind::kNone:
      break;
  }
  return 0;
}

int64_t encode_any(const EncodeRange& range) {
  if (range.dtype == Dtype::kFloat32)
    return encode_values(range, static_cast<const float*>(range.source));
  if (range.dtype == Dtype::kBfloat16)
    return encode_values(range, static_cast<const uint16_t*>(range.source));
  return encode_values(range, static_cast<const double*>(range.source));
}

}  // namespace strait::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::codec {

HWY_EXPORT(encode_any);

int64_t encode_range(const EncodeRange& range) {
  ensure(range.spec.kind != CodecKind::kNone, "codec: `none` is copied, not encoded");
  return HWY_DYNAMIC_DISPATCH(encode_any)(range);
}

int64_t range_unit(const CodecSpec& spec) {
  if (spec.block == 0) return 2;
  return spec.block % 2 == 0 || spec.kind != CodecKind::kInt4 ? spec.block : 2 * spec.block;
}

}  // namespace strait::codec
#endif
