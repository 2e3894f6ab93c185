// Encoding, compiled once per instruction set. Two passes over a block, the second one in the first
// cache: its range, then its codes.
#include <numeric>

#include "strait/codec/qsgd.h"
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

/// What the blocks of a range have in common.
struct BlocksCall {
  const EncodeRange& range;
  Scales<uint8_t> scales;
  float divisor;
  bool past_caches;  // every vector of codes starts at a multiple of its size

  explicit BlocksCall(const EncodeRange& what)
      : range(what),
        scales(what.spec, what.encoded, what.elements),
        divisor(what.spec.asymmetric ? integer_range(what.spec).divisor
                                     : symmetric_divisor(what.spec)),
        past_caches(what.past_caches && what.spec.block % 128 == 0 &&
                    reinterpret_cast<uintptr_t>(what.encoded) % 64 == 0) {}

  /// Fixes and writes the scale of a block.
  BlockScale put_scale(const Ends& ends, int64_t block) const {
    const BlockScale scale = scale_of(ends);
    scales.put(block, scale);
    return scale;
  }

 private:
  BlockScale scale_of(const Ends& ends) const {
    if (range.spec.asymmetric) return asymmetric_scale(ends.low, ends.high, divisor);
    const float largest = std::max(-ends.low, ends.high);
    return range.spec.kind == CodecKind::kE3m0 ? e3m0_scale(largest)
                                               : symmetric_scale(largest, divisor);
  }
};

/// Elements [first, last) of a block one by one; x points to element `first`.
template <class T>
void put_elements(const BlocksCall& call, const BlockScale& scale, const T* x, int64_t first,
                  int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    const float value = read_float(x + (i - first));
    put_element(call.range.spec, call.range.encoded, scale, i, std::isfinite(value) ? value : 0.0f);
  }
}

template <class T>
int64_t put_bfloat16(const T* x, uint8_t* out, int64_t count) {
  int64_t lost = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float value = read_float(x + i);
    const bool finite = std::isfinite(value);
    const uint16_t bits = finite ? to_bfloat16(value) : uint16_t{0};
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
    lost += !finite;
  }
  return lost;
}

/// One element at a time: on plain memory nothing moves in fp16 but what a user asks for.
template <class T>
int64_t encode_float16(const EncodeRange& range, const T* x) {
  uint8_t* out = range.encoded + 2 * range.begin;
  int64_t lost = 0;
  for (int64_t i = 0; i < range.end - range.begin; ++i) {
    const float value = read_float(x + i);
    const bool fits = std::abs(value) < kFloat16Infinite;  // false for NaN
    const uint16_t bits = fits ? to_float16(value) : uint16_t{0};
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
    lost += !fits;
  }
  return lost;
}

#if HWY_TARGET == HWY_SCALAR

template <CodecKind kKind, bool kAsymmetric, class T>
int64_t encode_blocks(const EncodeRange& range, const T* x) {
  const BlocksCall call(range);
  int64_t lost = 0;
  int64_t index = range.begin / range.spec.block;
  for (int64_t first = range.begin; first < range.end; first += range.spec.block, ++index) {
    const int64_t last = std::min(first + range.spec.block, range.end);
    const Ends ends = finite_ends(x + (first - range.begin), last - first);
    put_elements(call, call.put_scale(ends, index), x + (first - range.begin), first, last);
    lost += ends.lost;
  }
  return lost;
}

template <class T>
int64_t encode_bfloat16(const EncodeRange& range, const T* x) {
  return put_bfloat16(x, range.encoded + 2 * range.begin, range.end - range.begin);
}

#else

constexpr int64_t kFetched = 64;

/// Fetches kFetched elements that will be read about 16 KiB after element `i` of `count` ones, into
/// the first cache, where they stay until they are encoded: blocks are read twice. The lines of
/// several pages take turns, because one page at a time does not keep memory busy.
template <class T>
HWY_INLINE void fetch_ahead(const T* x, uint64_t i, uint64_t count) {
  constexpr uint64_t kLine = 64 / sizeof(T), kPage = 4096 / sizeof(T),
                     kPages = kFetched / kLine < 4 ? kFetched / kLine : 4, kGroup = kPages * kPage;
  const uint64_t place = i % kGroup, target = i - place + kGroup + place / kPages / kLine * kLine;
  if (target + kGroup > count) return;
  for (uint64_t k = 0; k < kFetched / kLine; ++k)
    __builtin_prefetch(x + target + k % kPages * kPage + k / kPages * kLine, 0, 3);
}

/// Finds the ends of one block vector by vector.
template <bool kAsymmetric, class T>
struct EndsFinder {
  const T* x;
  SignedVector sizes = hn::Zero(Signed());
  FloatVector low, high;  // asymmetric

  HWY_INLINE explicit EndsFinder(const T* block) : x(block) {
    low = high = hn::Set(Floats(), kAsymmetric ? read_float(x) : 0.0f);
  }
  HWY_INLINE void add(int64_t i) {
    const FloatVector value = load_floats(x + i);
    sizes = hn::Max(sizes, size_bits(value));
    if constexpr (kAsymmetric) {
      low = hn::Min(low, value);
      high = hn::Max(high, value);
    }
  }
  /// The ends of `count` elements, of which `done` were added.
  HWY_INLINE Ends finish(int64_t done, int64_t count) {
    for (; done + kLanes <= count; done += kLanes) add(done);
    int32_t bits = hn::GetLane(hn::MaxOfLanes(Signed(), sizes));
    Ends ends;
    if constexpr (kAsymmetric) {
      ends.low = hn::GetLane(hn::MinOfLanes(Floats(), low));
      ends.high = hn::GetLane(hn::MaxOfLanes(Floats(), high));
    }
    for (int64_t i = done; i < count; ++i) {
      const float value = read_float(x + i);
      bits = std::max(bits, std::bit_cast<int32_t>(value) & 0x7fffffff);
      ends.low = std::min(ends.low, value);
      ends.high = std::max(ends.high, value);
    }
    if (bits >= kInfinityBits) return finite_ends(x, count);
    if constexpr (!kAsymmetric) {
      ends.high = std::bit_cast<float>(bits);
      ends.low = -ends.high;
    }
    return ends;
  }
};

/// Codes of one vector of finite elements, in the lowest bits of 32-bit lanes.
template <CodecKind kKind, bool kAsymmetric>
HWY_INLINE hn::Vec<Unsigned> codes_of(FloatVector x, const BlockScale& scale, FloatVector shift) {
  const Floats d;
  if constexpr (kKind == CodecKind::kE3m0)
    return hn::BitCast(Unsigned(), to_e3m0_codes(x, scale.step));
  if constexpr (kAsymmetric) x = hn::Sub(x, hn::Set(d, scale.middle));
  auto scaled = hn::Mul(x, hn::Set(d, scale.inverse));
  if constexpr (!is_integer(kKind)) {
    return hn::BitCast(Unsigned(), to_fp8_codes<kKind>(scaled));
  } else {
    if constexpr (kAsymmetric) scaled = hn::Sub(scaled, shift);
    constexpr float kHighest = kKind == CodecKind::kInt8 ? 127.0f : 7.0f;
    // The lowest level needs no bound: no finite element of the block lies half a step below it.
    scaled = hn::Min(scaled, hn::Set(d, kHighest));
    // The last place of numbers around this one is 1, so the sum is rounded to a whole number.
    return hn::BitCast(Unsigned(), hn::Add(scaled, hn::Set(d, 0x1.8p23f)));
  }
}

/// Stores a whole vector of bytes, past the caches where that is asked for.
template <class D>
HWY_INLINE void store_bytes(D d, hn::Vec<D> bytes, hn::TFromD<D>* out, bool past_caches) {
  past_caches ? hn::Stream(bytes, d, out) : hn::StoreU(bytes, d, out);
}

/// Nibbles: both codes of a 64-bit lane in its lowest byte, the first one low; the rest is not
/// cleared.
HWY_INLINE hn::Vec<Unsigned> join_nibbles(hn::Vec<Unsigned> codes) {
  const hn::Repartition<uint64_t, Unsigned> pairs;
  const auto both = hn::BitCast(pairs, codes);
  const auto shifted = hn::ShiftRight<28>(both);
  const auto changed = hn::And(hn::Set(pairs, 15), hn::Xor(both, shifted));
  return hn::BitCast(Unsigned(), hn::Xor(shifted, changed));
}

using Quarter = hn::Rebind<uint8_t, Unsigned>;

/// Encodes one block of finite elements step by step.
template <CodecKind kKind, bool kAsymmetric, class T>
struct BlockEncoder {
  const T* x;
  uint8_t* out;  // the block's payload
  BlockScale scale;
  FloatVector shift;
  bool past_caches;

  /// Elements whose codes fill a quarter of a vector, and a whole one.
  static constexpr int64_t kQuarter = has_nibbles(kKind) ? 2 * kLanes : kLanes;
  static constexpr int64_t kStep = 4 * kQuarter;

  HWY_INLINE hn::Vec<Unsigned> codes(int64_t i) const {
    return codes_of<kKind, kAsymmetric>(load_floats(x + i), scale, shift);
  }
  HWY_INLINE hn::Vec<Quarter> quarter(int64_t i) const {
    if constexpr (has_nibbles(kKind)) {
      const auto low = join_nibbles(codes(i)), high = join_nibbles(codes(i + kLanes));
      return hn::TruncateTo(Quarter(), hn::ConcatEven(Unsigned(), high, low));
    } else {
      return hn::TruncateTo(Quarter(), codes(i));
    }
  }
  HWY_INLINE uint8_t* at(int64_t i) const { return out + (has_nibbles(kKind) ? i / 2 : i); }
  HWY_INLINE void quarter_step(int64_t i) const { hn::StoreU(quarter(i), Quarter(), at(i)); }
  HWY_INLINE void step(int64_t i) const {
    const hn::Twice<Quarter> half;
    const hn::Twice<decltype(half)> whole;
    const auto low = hn::Combine(half, quarter(i + kQuarter), quarter(i));
    const auto high = hn::Combine(half, quarter(i + 3 * kQuarter), quarter(i + 2 * kQuarter));
    store_bytes(whole, hn::Combine(whole, high, low), at(i), past_caches);
  }
};

/// One block of a range: elements [first, last); x points to element `first`.
template <class T>
struct Block {
  const T* x;
  int64_t index, first, last;
};

/// Encodes a block, whose ends are known, and finds the ends of the next one on the way, so that
/// memory never waits.
template <CodecKind kKind, bool kAsymmetric, class T>
HWY_INLINE Ends encode_block(const BlocksCall& call, const Block<T>& block, const Ends& ends) {
  using Encoder = BlockEncoder<kKind, kAsymmetric, T>;
  const EncodeRange& range = call.range;
  const auto [x, index, first, last] = block;
  const BlockScale scale = call.put_scale(ends, index);
  const Encoder encoder{x, range.encoded + (has_nibbles(kKind) ? first / 2 : first), scale,
                        hn::Set(Floats(), level_shift(range.spec)), call.past_caches};
  const int64_t count = last - first, next_count = std::min(range.spec.block, range.end - last);
  const bool by_vectors = ends.lost == 0 && (!has_nibbles(kKind) || first % 2 == 0);
  EndsFinder<kAsymmetric, T> finder(next_count > 0 ? x + count : x);
  int64_t i = 0, found = 0;
  if (by_vectors && next_count == count) {
    const int64_t start = first - range.begin;
    const int64_t sought = start + count;  // the finder is a block ahead
    for (int64_t k = 0; count % kFetched == 0 && k < count % Encoder::kStep; k += kFetched)
      fetch_ahead(x - start, sought + k, range.end - range.begin);
    for (; i + Encoder::kStep <= count; i += Encoder::kStep) {
      for (int64_t k = 0; k < Encoder::kStep; k += kFetched)
        fetch_ahead(x - start, sought + i + k, range.end - range.begin);
      encoder.step(i);
      for (int64_t k = 0; k < Encoder::kStep; k += kLanes) finder.add(i + k);
    }
    for (; i + Encoder::kQuarter <= count; i += Encoder::kQuarter) {
      encoder.quarter_step(i);
      for (int64_t k = 0; k < Encoder::kQuarter; k += kLanes) finder.add(i + k);
    }
    found = i;
  } else if (by_vectors) {
    for (; i + Encoder::kQuarter <= count; i += Encoder::kQuarter) encoder.quarter_step(i);
  }
  if (i < count) put_elements(call, scale, x + i, first + i, last);
  return finder.finish(found, next_count);
}

template <CodecKind kKind, bool kAsymmetric, class T>
int64_t encode_blocks(const EncodeRange& range, const T* x) {
  const BlocksCall call(range);
  const int64_t size = range.spec.block;
  Ends ends = EndsFinder<kAsymmetric, T>(x).finish(0, std::min(size, range.end - range.begin));
  int64_t lost = 0, index = range.begin / size;
  for (int64_t first = range.begin; first < range.end; first += size, ++index) {
    lost += ends.lost;
    const int64_t last = std::min(first + size, range.end);
    ends = encode_block<kKind, kAsymmetric, T>(
        call, {x + (first - range.begin), index, first, last}, ends);
  }
  if (call.past_caches) hwy::FlushStream();
  return lost;
}

template <class T>
int64_t encode_bfloat16(const EncodeRange& range, const T* x) {
  const Signed d;
  const hn::Rebind<uint16_t, Floats> narrow;
  const hn::Twice<decltype(narrow)> whole;
  const int64_t count = range.end - range.begin;
  uint16_t* out = reinterpret_cast<uint16_t*>(range.encoded + 2 * range.begin);
  const bool past_caches = range.past_caches && reinterpret_cast<uintptr_t>(out) % 64 == 0;
  auto lost = hn::Zero(d);
  int64_t i = 0;
  const auto rounded = [&](int64_t at) {
    const auto value = load_floats(x + at);
    const auto finite = hn::Lt(size_bits(value), hn::Set(d, kInfinityBits));
    lost = hn::Sub(lost, hn::VecFromMask(d, hn::Not(finite)));
    const auto bits = hn::IfThenElseZero(finite, to_bfloat16_bits(value));
    return hn::TruncateTo(narrow, hn::BitCast(Unsigned(), bits));
  };
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    if (i % kFetched == 0) fetch_ahead(x, i, count);
    const auto low = rounded(i), high = rounded(i + kLanes);
    store_bytes(whole, hn::Combine(whole, high, low), out + i, past_caches);
  }
  if (past_caches) hwy::FlushStream();
  return hn::GetLane(hn::SumOfLanes(d, lost)) +
         put_bfloat16(x + i, reinterpret_cast<uint8_t*>(out + i), count - i);
}

#endif  // HWY_SCALAR

template <class T>
int64_t encode_values(const EncodeRange& range, const T* x) {
  switch (range.spec.kind) {
    case CodecKind::kBfloat16:
      return encode_bfloat16(range, x);
    case CodecKind::kFloat16:
      return encode_float16(range, x);
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
    case CodecKind::kE3m0:
      return encode_blocks<CodecKind::kE3m0, false>(range, x);
    case CodecKind::kQsgd:  // in files of their own
    case CodecKind::kTopK:
    case CodecKind::kRandomK:
    case CodecKind::kPowerSgd:
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
  ensure(!is_of_layers(range.spec), "codec: a sparse piece has no ranges");
  if (range.spec.kind == CodecKind::kQsgd) return encode_qsgd(range);
  return HWY_DYNAMIC_DISPATCH(encode_any)(range);
}

int64_t range_unit(const CodecSpec& spec) {
  if (spec.block == 0) return 2;
  if (spec.kind == CodecKind::kQsgd) return std::lcm(spec.block, int64_t{8});
  return spec.block % 2 == 0 || !has_nibbles(spec.kind) ? spec.block : 2 * spec.block;
}

}  // namespace strait::codec
#endif
