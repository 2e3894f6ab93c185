// Decoding, compiled once per instruction set.
#include "strait/codec/qsgd.h"
#include "strait/codec/ranges.h"
#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/codec/decode.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "strait/base/errors.h"
#include "strait/codec/element.h"
#include "strait/codec/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::codec::HWY_NAMESPACE {

/// What becomes of decoded numbers: written past the caches, written, or added.
enum class Put { kStream, kStore, kAdd };

template <Put kPut, class T>
inline void put_float(float value, T* out) {
  *out = kPut == Put::kAdd ? *out + static_cast<T>(value) : static_cast<T>(value);
}
template <Put kPut>
inline void put_float(float value, uint16_t* out) {
  *out = to_bfloat16(value);
}

#if HWY_TARGET == HWY_SCALAR

template <CodecKind kKind, bool kAsymmetric, Put kPut, class T>
int64_t decode_vectors(const DecodeRange&, const BlockScale&, T*, int64_t, int64_t) {
  return 0;
}
template <Put kPut, class T>
int64_t bfloat16_vectors(const uint16_t*, T*, int64_t) {
  return 0;
}
constexpr int64_t kLanes = 1;

#else

template <Put kPut>
HWY_INLINE void put_floats(FloatVector value, float* out) {
  const Floats d;
  if constexpr (kPut == Put::kStream) hn::Stream(value, d, out);
  if constexpr (kPut == Put::kStore) hn::StoreU(value, d, out);
  if constexpr (kPut == Put::kAdd) hn::StoreU(hn::Add(hn::LoadU(d, out), value), d, out);
}
template <Put kPut>
HWY_INLINE void put_floats(FloatVector value, uint16_t* out) {
  store_bfloat16(to_bfloat16_bits(value), out);
}
template <Put kPut>
HWY_INLINE void put_floats(FloatVector value, double* out) {
  HWY_ALIGN float buffer[kLanes];
  hn::Store(value, Floats(), buffer);
  for (int64_t i = 0; i < kLanes; ++i) out[i] = kPut == Put::kAdd ? out[i] + buffer[i] : buffer[i];
}

/// The nibbles of elements i and on, one a byte; i is even.
HWY_INLINE hn::Vec<hn::Rebind<int8_t, Floats> > read_nibbles(const uint8_t* payload, int64_t i) {
  const hn::Rebind<int8_t, Floats> narrow;
  const hn::RepartitionToWide<hn::RebindToUnsigned<decltype(narrow)> > wide;
  const hn::Rebind<uint8_t, decltype(wide)> packed;
  const auto bytes = hn::PromoteTo(wide, hn::LoadU(packed, payload + i / 2));
  const auto nibbles = hn::And(hn::Or(bytes, hn::ShiftLeft<4>(bytes)), hn::Set(wide, 0x0f0f));
  return hn::BitCast(narrow, nibbles);
}

/// One vector of codes as numbers, before the scale; nibbles: i is even.
template <CodecKind kKind>
HWY_INLINE FloatVector read_codes(const uint8_t* payload, int64_t i) {
  const Signed d;
  if constexpr (kKind == CodecKind::kInt8) {
    const hn::Rebind<int8_t, Floats> narrow;
    const auto codes = hn::LoadU(narrow, reinterpret_cast<const int8_t*>(payload + i));
    return hn::ConvertTo(Floats(), hn::PromoteTo(d, codes));
  } else if constexpr (kKind == CodecKind::kInt4) {
    const auto eight = hn::Set(hn::Rebind<int8_t, Floats>(), 8);
    const auto codes = hn::Sub(hn::Xor(read_nibbles(payload, i), eight), eight);
    return hn::ConvertTo(Floats(), hn::PromoteTo(d, codes));
  } else if constexpr (kKind == CodecKind::kE3m0) {
    return from_e3m0_codes(hn::PromoteTo(d, read_nibbles(payload, i)));
  } else {
    return from_fp8_codes<kKind>(payload + i);
  }
}

/// The whole vectors of elements [i, last) of a block; returns how many elements that are.
template <CodecKind kKind, bool kAsymmetric, Put kPut, class T>
HWY_ATTR int64_t decode_vectors(const DecodeRange& range, const BlockScale& scale, T* out,
                                int64_t i, int64_t last) {
  const Floats d;
  const auto step = hn::Set(d, scale.step), middle = hn::Set(d, scale.middle),
             shift = hn::Set(d, level_shift(range.spec));
  const int64_t first = i;
  const uint8_t* const payload = range.encoded;
  for (; i + kLanes <= last; i += kLanes) {
    auto value = read_codes<kKind>(payload, i);
    if constexpr (kAsymmetric) value = hn::Add(value, shift);
    value = hn::Mul(value, step);
    if constexpr (kAsymmetric) value = hn::Add(value, middle);
    put_floats<kPut>(value, out + (i - first));
  }
  return i - first;
}

template <Put kPut, class T>
HWY_ATTR int64_t bfloat16_vectors(const uint16_t* from, T* out, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) put_floats<kPut>(load_floats(from + i), out + i);
  return i;
}

#endif  // HWY_SCALAR

/// Elements [first, last) of one block; out points to element `first`.
template <CodecKind kKind, bool kAsymmetric, Put kPut, class T>
HWY_INLINE void decode_block(const DecodeRange& range, const BlockScale& scale, T* out,
                             int64_t first, int64_t last) {
  const auto decode_one = [&](int64_t i) {
    put_float<kPut>(get_element(range.spec, range.encoded, scale, i), out + (i - first));
  };
  int64_t i = first;
  if (has_nibbles(kKind) && i % 2 != 0) decode_one(i++);
  i += decode_vectors<kKind, kAsymmetric, kPut>(range, scale, out + (i - first), i, last);
  for (; i < last; ++i) decode_one(i);
}

template <CodecKind kKind, bool kAsymmetric, Put kPut, class T>
void decode_blocks(const DecodeRange& range, T* out) {
  const Scales<const uint8_t> scales(range.spec, range.encoded, range.elements);
  const int64_t block = range.spec.block;
  int64_t index = range.begin / block;
  for (int64_t first = range.begin, last; first < range.end; first = last, ++index) {
    last = std::min((index + 1) * block, range.end);
    decode_block<kKind, kAsymmetric, kPut>(range, scales.get(index), out + (first - range.begin),
                                           first, last);
  }
}

template <Put kPut, class T>
void decode_bfloat16(const DecodeRange& range, T* out) {
  const uint16_t* from = reinterpret_cast<const uint16_t*>(range.encoded + 2 * range.begin);
  const int64_t count = range.end - range.begin;
  for (int64_t i = bfloat16_vectors<kPut>(from, out, count); i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + i, sizeof(bits));
    put_float<kPut>(read_float(&bits), out + i);
  }
}

template <Put kPut, class T>
void decode_float16(const DecodeRange& range, T* out) {
  const uint8_t* from = range.encoded + 2 * range.begin;
  for (int64_t i = 0; i < range.end - range.begin; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, sizeof(bits));
    put_float<kPut>(from_float16(bits), out + i);
  }
}

template <Put kPut, class T>
void decode_values(const DecodeRange& range, T* out) {
  switch (range.spec.kind) {
    case CodecKind::kBfloat16:
      return decode_bfloat16<kPut>(range, out);
    case CodecKind::kFloat16:
      return decode_float16<kPut>(range, out);
    case CodecKind::kInt8:
      return range.spec.asymmetric ? decode_blocks<CodecKind::kInt8, true, kPut>(range, out)
                                   : decode_blocks<CodecKind::kInt8, false, kPut>(range, out);
    case CodecKind::kInt4:
      return range.spec.asymmetric ? decode_blocks<CodecKind::kInt4, true, kPut>(range, out)
                                   : decode_blocks<CodecKind::kInt4, false, kPut>(range, out);
    case CodecKind::kFp8E4m3:
      return decode_blocks<CodecKind::kFp8E4m3, false, kPut>(range, out);
    case CodecKind::kFp8E5m2:
      return decode_blocks<CodecKind::kFp8E5m2, false, kPut>(range, out);
    case CodecKind::kE3m0:
      return decode_blocks<CodecKind::kE3m0, false, kPut>(range, out);
    case CodecKind::kQsgd:  // in files of their own
    case CodecKind::kTopK:
    case CodecKind::kRandomK:
    case CodecKind::kPowerSgd:
    case CodecKind::kNone:
      break;
  }
}

/// Every vector of the range starts at a multiple of the vector's size.
bool can_stream(const DecodeRange& range) {
  constexpr int64_t kVectorBytes = kLanes * static_cast<int64_t>(sizeof(float));
  const int64_t block = range.spec.block;
  return range.past_caches && reinterpret_cast<uintptr_t>(range.out) % kVectorBytes == 0 &&
         (block == 0 || (block % kLanes == 0 && range.begin % block == 0));
}

void decode_any(const DecodeRange& range) {
  if (range.dtype == Dtype::kFloat32) {
    float* out = static_cast<float*>(range.out);
    if (range.add) return decode_values<Put::kAdd>(range, out);
    if (!can_stream(range)) return decode_values<Put::kStore>(range, out);
    decode_values<Put::kStream>(range, out);
    hwy::FlushStream();
  } else if (range.dtype == Dtype::kBfloat16) {
    decode_values<Put::kStore>(range, static_cast<uint16_t*>(range.out));
  } else {
    double* out = static_cast<double*>(range.out);
    range.add ? decode_values<Put::kAdd>(range, out) : decode_values<Put::kStore>(range, out);
  }
}

}  // namespace strait::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::codec {

HWY_EXPORT(decode_any);

void decode_range(const DecodeRange& range) {
  ensure(range.spec.kind != CodecKind::kNone, "codec: `none` is copied, not decoded");
  ensure(!is_of_layers(range.spec), "codec: a sparse piece has no ranges");
  if (range.spec.kind == CodecKind::kQsgd) return decode_qsgd(range);
  HWY_DYNAMIC_DISPATCH(decode_any)(range);
}

}  // namespace strait::codec
#endif
