// The register tile of matrix products on packed panels, for one instruction set. Included once per
// target by foreach_target.h.
#if defined(STRAIT_KERNEL_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_GEMM_TILE_INL_H_
#undef STRAIT_KERNEL_GEMM_TILE_INL_H_
#else
#define STRAIT_KERNEL_GEMM_TILE_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "strait/kernel/gemm.h"
#include "strait/kernel/vector-inl.h"

// Whether this instruction set may be joined by AVX512_BF16.
#undef STRAIT_KERNEL_PAIRED
#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86
#define STRAIT_KERNEL_PAIRED
#endif

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 12 x 2 accumulators, two loads of B and a broadcast fit 32 registers; 6 x 2 fit 16.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int64_t kTileRows = 12;
#else
constexpr int64_t kTileRows = 6;
#endif
constexpr int64_t kTileRowStep = kTileRows / 3;  // tiles of a third of the rows, of two, of all
constexpr int64_t kTileVectors = 2;
template <class W>
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<W>()));
template <class W>
constexpr int64_t kTileColumns = kTileVectors* kLanes<W>;

/// Where a tile's result goes: c = base + bias + sum. rows, columns may be less than the tile's.
template <class W, class C>
struct TileTarget {
  C* c = nullptr;
  int64_t c_stride = 0;
  int64_t rows = 0, columns = 0;
  const C* base = nullptr;  // null: 0
  int64_t base_stride = 0;
  const W* bias = nullptr;  // null: 0
  bool fetched = false;     // matrix tiles announce it to the memory: it is larger than the caches
};

/// What rows of A are multiplied as.
enum class RowsOfA : uint8_t {
  kPacked,    // panel by panel, while B comes from the second-level cache
  kPrepared,  // have been packed: Panels::a. B is near, as with
  kFew,       // the same, and the panel of B that comes next is fetched from far meanwhile
  kInPlace    // where they are: wide numbers near the core, a multiple of kTileRowStep rows
};

/// A panel of B before it is packed, for fetching: at depth k the cache line at `data` + (k modulo
/// `period`) * `stride` + (k less that) * `depth_stride` bytes.
struct FarPanel {
  const uint8_t* data = nullptr;
  int64_t period = 1, stride = 0, depth_stride = 0;
};

/// Operands of a tile: b packed, [depth][kTileColumns], and a, [depth][kTileRows], or in place.
template <class W>
struct TileOperands {
  const W* a = nullptr;
  const W* b = nullptr;
  int64_t depth = 0;
  int64_t a_row = 0, a_depth = 0;  // strides of a in place
  FarPanel next;
};

template <class W, class C>
HWY_INLINE void store_row(const TileTarget<W, C>& target, int64_t row,
                          hn::Vec<hn::ScalableTag<W>> low, hn::Vec<hn::ScalableTag<W>> high) {
  const hn::ScalableTag<W> d;
  constexpr int64_t kLane = kLanes<W>;
  C* out = target.c + row * target.c_stride;
  const int64_t first = std::min(kLane, target.columns), second = target.columns - kLane;
  if (target.bias) {
    low = hn::Add(load_part(d, target.bias, first), low);
    if (second > 0) high = hn::Add(load_part(d, target.bias + kLane, second), high);
  }
  if (target.base) {
    const C* base = target.base + row * target.base_stride;
    low = hn::Add(load_part(d, base, first), low);
    if (second > 0) high = hn::Add(load_part(d, base + kLane, second), high);
  }
  store_part(d, low, out, first);
  if (second > 0) store_part(d, high, out + kLane, second);
}

/// kRows rows of a tile.
template <int64_t kRows, RowsOfA kForm, class W, class C>
HWY_ATTR HWY_NOINLINE void multiply_rows(const TileOperands<W>& in,
                                         const TileTarget<W, C>& target) {
  const hn::ScalableTag<W> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLane = kLanes<W>;
  constexpr int64_t kAhead = 2048 / static_cast<int64_t>(sizeof(W));  // of B
  constexpr bool kWide = kLane * sizeof(W) == 64;  // a panel of B is 48 KB, and 24 KB otherwise
  V low[kRows], high[kRows];
#pragma GCC unroll 16
  for (int64_t row = 0; row < kRows; ++row) {
    low[row] = high[row] = hn::Zero(d);
    if (row < target.rows) {
      __builtin_prefetch(target.c + row * target.c_stride);
      __builtin_prefetch(target.c + row * target.c_stride + kLane);
    }
  }
  const W *a = in.a, *b = in.b;
  constexpr bool kInPlace = kForm == RowsOfA::kInPlace;
  const int64_t a_row = kInPlace ? in.a_row : 1, a_depth = kInPlace ? in.a_depth : kTileRows;
  for (int64_t k = 0; k < in.depth; ++k, a += a_depth, b += 2 * kLane) {
    const V b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + kLane);
    if constexpr (kForm == RowsOfA::kPacked || (kForm == RowsOfA::kFew && kWide)) {
      __builtin_prefetch(b + kAhead);
      __builtin_prefetch(b + kAhead + kLane);
    }
    if constexpr (kForm == RowsOfA::kFew) {
      const int64_t inside = k & (in.next.period - 1);
      __builtin_prefetch(
          in.next.data + inside * in.next.stride + (k - inside) * in.next.depth_stride, 0, 2);
    }
#pragma GCC unroll 16
    for (int64_t row = 0; row < kRows; ++row) {
      const V factor = hn::Set(d, a[row * a_row]);
      low[row] = hn::MulAdd(factor, b0, low[row]);
      high[row] = hn::MulAdd(factor, b1, high[row]);
    }
  }
#pragma GCC unroll 16
  for (int64_t row = 0; row < kRows; ++row) {
    if (row < target.rows) store_row(target, row, low[row], high[row]);
  }
}

#ifdef STRAIT_KERNEL_PAIRED
/// Apart from multiply_pairs, whose target clang does not take for one that has all of Highway's.
template <class C>
HWY_ATTR inline void store_rows(const TileTarget<float, C>& target, const float (*sums)[32],
                                int64_t rows) {
  const hn::ScalableTag<float> d;
  for (int64_t row = 0; row < rows; ++row)
    store_row(target, row, hn::Load(d, sums[row]), hn::Load(d, sums[row] + 16));
}

inline bool has_pairs() {
  static const bool has = __builtin_cpu_supports("avx512bf16");
  return has;
}

/// A row of 32 sums with its bias, rounded by the processor, which takes subnormal numbers for 0.
HWY_ATTR HWY_INLINE void store_pairs(const TileTarget<float, Bfloat16>& target, int64_t row,
                                     const float* sums) {
  __m512 low = _mm512_load_ps(sums), high = _mm512_load_ps(sums + 16);
  if (target.bias) {
    low = _mm512_add_ps(_mm512_loadu_ps(target.bias), low);
    high = _mm512_add_ps(_mm512_loadu_ps(target.bias + 16), high);
  }
  __m512i rounded;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low), "v"(high));
  _mm512_storeu_si512(target.c + row * target.c_stride, rounded);
}

/// kRows rows of a tile of packed pairs: every product adds two depths.
template <int64_t kRows, class C>
__attribute__((target("avx512bf16"))) HWY_NOINLINE void multiply_pairs(
    const TileOperands<float>& in, const TileTarget<float, C>& target) {
  __m512 low[kRows], high[kRows];
#pragma GCC unroll 16
  for (int64_t row = 0; row < kRows; ++row) low[row] = high[row] = _mm512_setzero_ps();
  const float *a = in.a, *b = in.b;
  for (int64_t k = 0; k < in.depth; ++k, a += kTileRows, b += 32) {
    const auto b0 = (__m512bh)_mm512_loadu_ps(b), b1 = (__m512bh)_mm512_loadu_ps(b + 16);
    _mm_prefetch(b + 256, _MM_HINT_T0);
    _mm_prefetch(b + 272, _MM_HINT_T0);
#pragma GCC unroll 16
    for (int64_t row = 0; row < kRows; ++row) {
      const auto factor = (__m512bh)_mm512_set1_ps(a[row]);
      low[row] = _mm512_dpbf16_ps(low[row], factor, b0);
      high[row] = _mm512_dpbf16_ps(high[row], factor, b1);
    }
  }
  HWY_ALIGN float sums[kRows][32];
#pragma GCC unroll 16
  for (int64_t row = 0; row < kRows; ++row) {
    _mm512_store_ps(sums[row], low[row]);
    _mm512_store_ps(sums[row] + 16, high[row]);
  }
  store_rows(target, sums, std::min(kRows, target.rows));
}
#endif

/// kRows rows of packed operands: wide numbers, or pairs.
template <int64_t kRows, bool kPairs, RowsOfA kForm, class W, class C>
HWY_ATTR inline void multiply_packed(const TileOperands<W>& in, const TileTarget<W, C>& target) {
#ifdef STRAIT_KERNEL_PAIRED
  if constexpr (kPairs) {
    multiply_pairs<kRows>(in, target);
    return;
  }
#endif
  multiply_rows<kRows, kForm>(in, target);
}

/// The tile of `target.rows` rows with no more work than the next multiple of kTileRowStep.
template <bool kPairs, RowsOfA kForm, class W, class C>
HWY_ATTR inline void multiply_tile(const TileOperands<W>& in, const TileTarget<W, C>& target) {
  constexpr int64_t kThird = kTileRowStep;
  if (target.rows > 2 * kThird) {
    multiply_packed<kTileRows, kPairs, kForm>(in, target);
  } else if (target.rows > kThird) {
    multiply_packed<2 * kThird, kPairs, kForm>(in, target);
  } else {
    multiply_packed<kThird, kPairs, kForm>(in, target);
  }
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
