// The register tile of matrix products and the packing that feeds it, for one instruction set.
// Included once per target by foreach_target.h.
//
// Blocks of B (kDepthBlock deep, kColumnBlock wide) are packed once and stay in the second-level
// cache; of A one panel of kTileRows rows at a time is packed and stays in the first-level cache
// while the block of B streams past it.
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
#include "strait/kernel/gemm_pack-inl.h"
#include "strait/kernel/gemm_scratch.h"
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
};

/// Packed operands of a tile: a [depth][kTileRows], b [depth][kTileColumns].
template <class W>
struct TileOperands {
  const W* a = nullptr;
  const W* b = nullptr;
  int64_t depth = 0;
};

template <class W, class C>
HWY_ATTR inline void store_row(const TileTarget<W, C>& target, int64_t row,
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
template <int64_t kRows, class W, class C>
HWY_ATTR HWY_NOINLINE void multiply_rows(const TileOperands<W>& in,
                                         const TileTarget<W, C>& target) {
  const hn::ScalableTag<W> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLane = kLanes<W>;
  constexpr int64_t kAhead = 2048 / static_cast<int64_t>(sizeof(W));  // of B
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
  for (int64_t k = 0; k < in.depth; ++k, a += kTileRows, b += 2 * kLane) {
    const V b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + kLane);
    __builtin_prefetch(b + kAhead);
    __builtin_prefetch(b + kAhead + kLane);
#pragma GCC unroll 16
    for (int64_t row = 0; row < kRows; ++row) {
      const V factor = hn::Set(d, a[row]);
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
template <int64_t kRows, bool kPairs, class W, class C>
HWY_ATTR inline void multiply_packed(const TileOperands<W>& in, const TileTarget<W, C>& target) {
#ifdef STRAIT_KERNEL_PAIRED
  if constexpr (kPairs) {
    multiply_pairs<kRows>(in, target);
    return;
  }
#endif
  multiply_rows<kRows>(in, target);
}

/// The tile of `target.rows` rows with no more work than the next multiple of a third of a tile.
template <bool kPairs, class W, class C>
HWY_ATTR inline void multiply_tile(const TileOperands<W>& in, const TileTarget<W, C>& target) {
  constexpr int64_t kThird = kTileRows / 3;
  if (target.rows > 2 * kThird) {
    multiply_packed<kTileRows, kPairs>(in, target);
  } else if (target.rows > kThird) {
    multiply_packed<2 * kThird, kPairs>(in, target);
  } else {
    multiply_packed<kThird, kPairs>(in, target);
  }
}

constexpr int64_t kDepthBlock = 384;  // in elements of packed panels: pairs hold two depths
template <class W>
constexpr int64_t kColumnBlock = 3072 / static_cast<int64_t>(sizeof(W));  // 1.2 MB of B
/// Sums of a narrow result whose products take several blocks of depth: 1 MB.
constexpr int64_t kNarrowSums = 262144, kSumRows = 1024;

/// Splits `total` into equal blocks of at most `limit`, each a multiple of `unit` but the last.
inline int64_t balanced(int64_t total, int64_t limit, int64_t unit) {
  const int64_t blocks = (total + limit - 1) / limit;
  const int64_t size = (total + blocks - 1) / blocks;
  return (size + unit - 1) / unit * unit;
}

/// The packed operands of the calling thread.
template <class W>
struct Panels {
  W *a, *b, *bias, *sums;
};
template <class W>
HWY_ATTR inline Panels<W> thread_panels(bool sums) {
  constexpr int64_t kA = kTileRows * kDepthBlock + kPackSlack;
  constexpr int64_t kB = (kColumnBlock<W> + kTileColumns<W>)*kDepthBlock + kPackSlack;
  constexpr int64_t kBias = kColumnBlock<W> + kTileColumns<W>;
  constexpr auto aligned = [](int64_t count) { return (count + 31) / 32 * 32; };
  const int64_t elements = aligned(kA) + aligned(kB) + aligned(kBias) + (sums ? kNarrowSums : 0);
  W* memory = static_cast<W*>(gemm_scratch(elements * static_cast<int64_t>(sizeof(W))));
  W* const b = memory + aligned(kA);
  W* const bias = b + aligned(kB);
  return {memory, b, bias, bias + aligned(kBias)};
}

/// What packed panels hold: wide numbers, or pairs of bf16.
template <bool kPairs, class W>
using Packed = std::conditional_t<kPairs, uint32_t, W>;
template <bool kPairs>
constexpr int64_t kDepths = kPairs ? 2 : 1;

/// rows x columns of the result, one block of depth: B is packed, A is packed panel by panel.
template <bool kPairs, class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_block(const MatrixView<T>& a, const Panels<W>& panels, int64_t depth,
                             const TileTarget<W, C>& whole) {
  TileOperands<W> in;
  in.a = panels.a;
  in.depth = (depth + kDepths<kPairs> - 1) / kDepths<kPairs>;
  for (int64_t row = 0; row < whole.rows; row += kTileRows) {
    TileTarget<W, C> tile = whole;
    tile.rows = std::min(kTileRows, whole.rows - row);
    const MatrixView<T> rows{a.data + row * a.row_stride, a.row_stride, a.column_stride};
    pack_panels<kTileRows>(rows, tile.rows, depth, reinterpret_cast<Packed<kPairs, W>*>(panels.a));
    for (int64_t column = 0; column < whole.columns; column += kTileColumns<W>) {
      tile.columns = std::min(kTileColumns<W>, whole.columns - column);
      tile.c = whole.c + row * whole.c_stride + column;
      tile.base = whole.base ? whole.base + row * whole.base_stride + column : nullptr;
      tile.bias = whole.bias ? whole.bias + column : nullptr;
      in.b = panels.b + column * in.depth;
      multiply_tile<kPairs>(in, tile);
    }
  }
}

/// whole.rows x whole.columns of the result over the full depth. `b` begins at the first column,
/// `a` at the first row.
template <bool kPairs, class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_columns(const MatrixView<T>& a, const MatrixView<T>& b, int64_t total_depth,
                               const Panels<W>& panels, const TileTarget<W, C>& whole) {
  const int64_t depth_block = balanced(total_depth, kDepths<kPairs> * kDepthBlock, kDepths<kPairs>);
  TileTarget<W, C> target = whole;
  for (int64_t k = 0; k < total_depth; k += depth_block) {
    const int64_t depth = std::min(depth_block, total_depth - k);
    const MatrixView<T> turned{b.data + k * b.row_stride, b.column_stride, b.row_stride};
    pack_panels<kTileColumns<W>>(turned, whole.columns, depth,
                                 reinterpret_cast<Packed<kPairs, W>*>(panels.b));
    const MatrixView<T> part{a.data + k * a.column_stride, a.row_stride, a.column_stride};
    multiply_block<kPairs, T, C>(part, panels, depth, target);
    target.base = whole.c;
    target.base_stride = whole.c_stride;
    target.bias = nullptr;
  }
}

/// A narrow result: summed up wide, block of rows by block of rows, then rounded.
template <bool kPairs, class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_narrow(const MatrixView<T>& a, const MatrixView<T>& b, int64_t depth,
                              const Panels<W>& panels, const TileTarget<W, C>& whole) {
  const hn::ScalableTag<W> d;
  const int64_t row_block = balanced(whole.rows, kSumRows, kTileRows);
  for (int64_t row = 0; row < whole.rows; row += row_block) {
    TileTarget<W, W> part;
    part.c = panels.sums;
    part.c_stride = whole.columns;
    part.rows = std::min(row_block, whole.rows - row);
    part.columns = whole.columns;
    part.bias = whole.bias;
    multiply_columns<kPairs, T, W>({a.data + row * a.row_stride, a.row_stride, a.column_stride}, b,
                                   depth, panels, part);
    for (int64_t r = 0; r < part.rows; ++r) {
      const W* sums = panels.sums + r * part.c_stride;
      const C* base = whole.base ? whole.base + (row + r) * whole.base_stride : nullptr;
      C* out = whole.c + (row + r) * whole.c_stride;
      for (int64_t c = 0; c < whole.columns; c += lanes_of(d)) {
        const int64_t left = whole.columns - c;
        auto value = load_part(d, sums + c, left);
        if (base) value = hn::Add(load_part(d, base + c, left), value);
        store_part(d, value, out + c, left);
      }
    }
  }
}

/// Columns that are done at a time: a narrow result's sums must fit.
template <class W>
HWY_ATTR inline int64_t column_limit(int64_t rows, bool sums) {
  if (!sums) return kColumnBlock<W>;
  const int64_t row_block = balanced(rows, kSumRows, kTileRows);
  const int64_t fit = kNarrowSums / row_block / kTileColumns<W> * kTileColumns<W>;
  return std::min(kColumnBlock<W>, fit);
}

/// The part [row_begin, row_end) x [column_begin, column_end) of c.
template <bool kPairs, class T, class C>
HWY_ATTR void gemm_part(const GemmCall<T, C>& call, int64_t row_begin, int64_t row_end,
                        int64_t column_begin, int64_t column_end) {
  using W = Wide<T>;
  constexpr bool kNarrow = !std::is_same_v<C, W>;
  const bool sums = kNarrow && call.depth > kDepths<kPairs> * kDepthBlock;
  const Panels<W> panels = thread_panels<W>(kNarrow);
  const int64_t rows = row_end - row_begin, all_columns = column_end - column_begin;
  const int64_t column_block = balanced(all_columns, column_limit<W>(rows, sums), kTileColumns<W>);
  const MatrixView<T> a{call.a.data + row_begin * call.a.row_stride, call.a.row_stride,
                        call.a.column_stride};
  const C* base = call.accumulate ? call.c : call.base;
  const int64_t base_stride = call.accumulate ? call.c_stride : call.base_stride;
  for (int64_t column = column_begin; column < column_end; column += column_block) {
    TileTarget<W, C> target;
    target.rows = rows;
    target.columns = std::min(column_block, column_end - column);
    target.c = call.c + row_begin * call.c_stride + column;
    target.c_stride = call.c_stride;
    target.base = base ? base + row_begin * base_stride + column : nullptr;
    target.base_stride = base_stride;
    if (call.bias) {
      std::copy_n(call.bias + column, target.columns, panels.bias);
      target.bias = panels.bias;
    }
    const MatrixView<T> b{call.b.data + column * call.b.column_stride, call.b.row_stride,
                          call.b.column_stride};
    if (sums) {
      multiply_narrow<kPairs, T, C>(a, b, call.depth, panels, target);
    } else {
      multiply_columns<kPairs, T, C>(a, b, call.depth, panels, target);
    }
  }
}

template <class T, class C>
HWY_ATTR void gemm_range(const GemmCall<T, C>& call, int64_t row_begin, int64_t row_end,
                         int64_t column_begin, int64_t column_end) {
#ifdef STRAIT_KERNEL_PAIRED
  if constexpr (std::is_same_v<T, Bfloat16>) {
    const bool automatic = call.products == NarrowProducts::kAutomatic;
    const NarrowProducts products = automatic ? narrow_products() : call.products;
    if (products == NarrowProducts::kPaired && __builtin_cpu_supports("avx512bf16")) {
      gemm_part<true>(call, row_begin, row_end, column_begin, column_end);
      return;
    }
  }
#endif
  gemm_part<false>(call, row_begin, row_end, column_begin, column_end);
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
