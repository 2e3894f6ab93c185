// Packing for matrix products: panels [depth][width] of wide elements. Included once per target by
// foreach_target.h.
#if defined(STRAIT_KERNEL_GEMM_PACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_GEMM_PACK_INL_H_
#undef STRAIT_KERNEL_GEMM_PACK_INL_H_
#else
#define STRAIT_KERNEL_GEMM_PACK_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "strait/base/bfloat16.h"
#include "strait/kernel/gemm.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// A packed panel may be written to this many elements behind its end.
constexpr int64_t kPackSlack = 16;

#if HWY_TARGET != HWY_SCALAR
using Words = hn::ScalableTag<uint32_t>;

/// Four words of each of up to 16 rows (as many as a vector has lanes), `stride` bytes apart,
/// transposed: word w of all rows becomes t[w]. Rows from kRows on are filled with others.
template <int64_t kRows>
HWY_ATTR inline void transpose_words(const uint8_t* in, int64_t stride, hn::Vec<Words>* t) {
  const Words d;
  const hn::FixedTag<uint32_t, 4> quad;
  const hn::Repartition<uint64_t, Words> pair;
  constexpr int64_t kBlocks = lanes_of(Words()) / 4;
  const auto row = [&](int64_t index) HWY_ATTR {
    const int64_t inside = index < kRows ? index : index % 4;
    return hn::LoadU(quad, reinterpret_cast<const uint32_t*>(in + inside * stride));
  };
  hn::Vec<Words> v[4];
#pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) {
    if constexpr (kBlocks == 1) {
      v[j] = row(j);
    } else if constexpr (kBlocks == 2) {
      v[j] = hn::Combine(d, row(j + 4), row(j));
    } else {
      const hn::Half<Words> half;
      v[j] = hn::Combine(d, hn::Combine(half, row(j + 12), row(j + 8)),
                         hn::Combine(half, row(j + 4), row(j)));
    }
  }
  const auto a = hn::BitCast(pair, hn::InterleaveLower(d, v[0], v[1]));
  const auto b = hn::BitCast(pair, hn::InterleaveLower(d, v[2], v[3]));
  const auto c = hn::BitCast(pair, hn::InterleaveUpper(d, v[0], v[1]));
  const auto e = hn::BitCast(pair, hn::InterleaveUpper(d, v[2], v[3]));
  t[0] = hn::BitCast(d, hn::InterleaveLower(pair, a, b));
  t[1] = hn::BitCast(d, hn::InterleaveUpper(pair, a, b));
  t[2] = hn::BitCast(d, hn::InterleaveLower(pair, c, e));
  t[3] = hn::BitCast(d, hn::InterleaveUpper(pair, c, e));
}

/// Four depths of fp32, eight of bf16, of the rows of one vector.
template <int64_t kRows, int64_t kWidth>
HWY_ATTR inline int64_t pack_words(const float* in, int64_t stride, float* out) {
  const hn::ScalableTag<float> d;
  hn::Vec<Words> t[4];
  transpose_words<kRows>(reinterpret_cast<const uint8_t*>(in), 4 * stride, t);
#pragma GCC unroll 4
  for (int64_t w = 0; w < 4; ++w) hn::StoreU(hn::BitCast(d, t[w]), d, out + w * kWidth);
  return 4;
}
template <int64_t kRows, int64_t kWidth>
HWY_ATTR inline int64_t pack_words(const Bfloat16* in, int64_t stride, float* out) {
  const Words word;
  const hn::ScalableTag<float> d;
  hn::Vec<Words> t[4];
  transpose_words<kRows>(reinterpret_cast<const uint8_t*>(in), 2 * stride, t);
  const auto upper = hn::Set(word, 0xffff0000U);
#pragma GCC unroll 4
  for (int64_t w = 0; w < 4; ++w) {
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(t[w])), d, out + 2 * w * kWidth);
    hn::StoreU(hn::BitCast(d, hn::And(t[w], upper)), d, out + (2 * w + 1) * kWidth);
  }
  return 8;
}

/// The same of bf16 in pairs: a word holds two depths.
template <int64_t kRows, int64_t kWidth>
HWY_ATTR inline int64_t pack_words(const Bfloat16* in, int64_t stride, uint32_t* out) {
  const Words word;
  hn::Vec<Words> t[4];
  transpose_words<kRows>(reinterpret_cast<const uint8_t*>(in), 2 * stride, t);
#pragma GCC unroll 4
  for (int64_t w = 0; w < 4; ++w) hn::StoreU(t[w], word, out + w * kWidth);
  return 8;
}

HWY_ATTR inline void transpose_square(const double* in, int64_t stride, double* out,
                                      int64_t out_stride) {
  const hn::FixedTag<double, 2> d;
  const auto r0 = hn::LoadU(d, in), r1 = hn::LoadU(d, in + stride);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, out);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, out + out_stride);
}

/// As many depths as go in steps; returns how many. Each step's stores may spill into the next row,
/// which the next step overwrites.
template <int64_t kWidth, class T, class P>
HWY_ATTR inline int64_t pack_steps(const T* in, int64_t stride, int64_t depth, P* out) {
  constexpr int64_t kLane = lanes_of(Words()), kStep = 16 / static_cast<int64_t>(sizeof(T));
  constexpr int64_t kPairs = std::is_same_v<P, uint32_t> ? 2 : 1;  // depths in an element of out
  constexpr int64_t kRest = kWidth % kLane;  // rows behind the last whole vector
  if constexpr (kRest != 0 && kRest < 4) return 0;
  // What less than a vector of rows spills is overwritten in time if it is all there is.
  static_assert(kRest < 4 || kWidth < kLane);
  constexpr int64_t kRows = std::min(kWidth, kLane);
  const int64_t whole = depth / kStep * kStep;
  for (int64_t line = 0; line < whole; line += 4 * kStep) {
    const int64_t end = std::min(whole, line + 4 * kStep);
    for (int64_t row = 0; row + kRows <= kWidth; row += kRows) {
      for (int64_t k = line; k < end; k += kStep)
        pack_words<kRows, kWidth>(in + row * stride + k, stride, out + k / kPairs * kWidth + row);
    }
  }
  return whole;
}
template <int64_t kWidth>
HWY_ATTR inline int64_t pack_steps(const double* in, int64_t stride, int64_t depth, double* out) {
  int64_t k = 0;
  for (; kWidth % 2 == 0 && k + 2 <= depth; k += 2) {
    for (int64_t row = 0; row < kWidth; row += 2)
      transpose_square(in + row * stride + k, stride, out + k * kWidth + row, kWidth);
  }
  return k;
}
#endif

/// One panel of `kWidth` entries x depth, entries contiguous in depth (depth_stride == 1).
template <int64_t kWidth, class T, class W>
HWY_ATTR inline void pack_transposed(const T* in, int64_t entry_stride, int64_t depth, W* out) {
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  k = pack_steps<kWidth>(in, entry_stride, depth, out);
#endif
  for (; k < depth; ++k) {
    for (int64_t entry = 0; entry < kWidth; ++entry)
      out[k * kWidth + entry] = in[entry * entry_stride + k];
  }
}

/// kWidth neighbouring elements.
template <int64_t kWidth, class T, class W>
HWY_ATTR inline void copy_entries(const T* in, W* out) {
  const hn::ScalableTag<W> d;
  constexpr int64_t kLane = lanes_of(d);
  if constexpr (kWidth % kLane == 0) {
#pragma GCC unroll 8
    for (int64_t e = 0; e < kWidth; e += kLane) hn::StoreU(load_part(d, in + e, kLane), d, out + e);
  } else if constexpr (kWidth % 4 == 0 && lanes_of(d) >= 4) {
    const hn::FixedTag<W, 4> quad;
#pragma GCC unroll 8
    for (int64_t e = 0; e < kWidth; e += 4) hn::StoreU(load_part(quad, in + e, 4), quad, out + e);
  } else {
#pragma GCC unroll 16
    for (int64_t e = 0; e < kWidth; ++e) out[e] = in[e];
  }
}

/// Packs `entries` rows of A (or of B transposed) into panels [depth][kWidth]; the last is padded
/// with 0.
template <int64_t kWidth, class T, class W>
HWY_ATTR inline void pack_panels(const MatrixView<T>& in, int64_t entries, int64_t depth, W* out) {
  const int64_t entry_stride = in.row_stride, depth_stride = in.column_stride;
  for (int64_t begin = 0; begin < entries; begin += kWidth, out += kWidth * depth) {
    const T* panel = in.data + begin * entry_stride;
    const int64_t width = std::min(kWidth, entries - begin);
    if (width == kWidth && depth_stride == 1 && entry_stride != 1) {
      pack_transposed<kWidth>(panel, entry_stride, depth, out);
      continue;
    }
    if (width == kWidth && entry_stride == 1) {
      for (int64_t k = 0; k < depth; ++k)
        copy_entries<kWidth>(panel + k * depth_stride, out + k * kWidth);
      continue;
    }
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t entry = 0; entry < width; ++entry) {
        out[k * kWidth + entry] = panel[entry * entry_stride + k * depth_stride];
      }
      for (int64_t entry = width; entry < kWidth; ++entry) out[k * kWidth + entry] = W{0};
    }
  }
}

/// Neighbouring entries of two depths, `stride` elements apart, as pairs.
template <int64_t kWidth>
HWY_ATTR inline void join_rows(const Bfloat16* even, int64_t stride, uint32_t* out) {
  const Bfloat16* odd = even + stride;
#pragma GCC ivdep
  for (int64_t entry = 0; entry < kWidth; ++entry)
    out[entry] = even[entry].bits | static_cast<uint32_t>(odd[entry].bits) << 16;
}

/// 32 neighbouring entries of two depths as pairs, 16 to each of `low` and `high`.
HWY_ATTR inline void join_broad(const Bfloat16* even, int64_t stride, uint32_t* low,
                                uint32_t* high) {
#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86
  alignas(64) static constexpr auto kOrder = [] {
    std::array<uint16_t, 64> order{};
    for (uint16_t i = 0; i < 64; ++i)
      order[i] = static_cast<uint16_t>(i / 2 + i % 2 * 32);  // from 32 on: of the odd depth
    return order;
  }();
  const __m512i a = _mm512_loadu_si512(even), b = _mm512_loadu_si512(even + stride);
  const __m512i first = _mm512_load_si512(kOrder.data());
  const __m512i second = _mm512_load_si512(kOrder.data() + 32);
  _mm512_storeu_si512(low, _mm512_permutex2var_epi16(a, first, b));
  _mm512_storeu_si512(high, _mm512_permutex2var_epi16(a, second, b));
#else
  join_rows<16>(even, stride, low);
  join_rows<16>(even + 16, stride, high);
#endif
}

/// Panels [ceil(depth / 2)][kWidth] of pairs: the even depth below, the odd one (0 behind an odd
/// end) above.
template <int64_t kWidth>
HWY_ATTR inline void pack_panels(const MatrixView<Bfloat16>& in, int64_t entries, int64_t depth,
                                 uint32_t* out) {
  const int64_t entry_stride = in.row_stride, depth_stride = in.column_stride;
  const int64_t pairs = (depth + 1) / 2;
  for (int64_t begin = 0; begin < entries; begin += kWidth, out += kWidth * pairs) {
    const Bfloat16* panel = in.data + begin * entry_stride;
    const int64_t width = std::min(kWidth, entries - begin);
    int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
    if (width == kWidth && depth_stride == 1 && entry_stride != 1)
      k = pack_steps<kWidth>(panel, entry_stride, depth, out);
#endif
    if (width == kWidth && entry_stride == 1) {
      for (; k + 2 <= depth; k += 2)
        join_rows<kWidth>(panel + k * depth_stride, depth_stride, out + k / 2 * kWidth);
    }
    for (; k < depth; k += 2) {
      const Bfloat16 *even = panel + k * depth_stride, *odd = even + depth_stride;
      uint32_t* row = out + k / 2 * kWidth;
      for (int64_t entry = 0; entry < width; ++entry) {
        const uint32_t above = k + 1 < depth ? odd[entry * entry_stride].bits : 0;
        row[entry] = even[entry * entry_stride].bits | above << 16;
      }
      std::fill(row + width, row + kWidth, 0U);
    }
  }
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
