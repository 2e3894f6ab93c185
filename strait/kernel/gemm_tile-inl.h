// The register tile of matrix products and the packing that feeds it, for one instruction set. Included
// once per target by foreach_target.h.
//
// Blocks of B (kDepthBlock deep, kColumnBlock wide) are packed once and stay in the second-level cache; of A
// one panel of kTileRows rows at a time is packed and stays in the first-level cache while the block of B
// streams past it.
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

/// Operands of a tile: a(row, k) = a[row * a_row + k * a_depth], b(k, column) = b[k * b_depth + column].
template <class W>
struct TileOperands {
  const W* a = nullptr;
  int64_t a_row = 1, a_depth = kTileRows;
  const W* b = nullptr;
  int64_t b_depth = 0;
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

/// kRows rows of a tile; the strides of packed operands are known to the compiler.
template <int64_t kRows, bool kPacked, class W, class C>
HWY_ATTR HWY_NOINLINE void multiply_rows(const TileOperands<W>& in,
                                         const TileTarget<W, C>& target) {
  const hn::ScalableTag<W> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kLane = kLanes<W>;
  const int64_t a_row = kPacked ? 1 : in.a_row, a_depth = kPacked ? kTileRows : in.a_depth;
  const int64_t b_depth = kPacked ? 2 * kLane : in.b_depth;
  constexpr int64_t kAhead = 1024;  // bytes of B
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
  for (int64_t k = 0; k < in.depth; ++k) {
    const V b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + kLane);
    if constexpr (kPacked) {
      __builtin_prefetch(reinterpret_cast<const char*>(b) + kAhead);
      __builtin_prefetch(reinterpret_cast<const char*>(b + kLane) + kAhead);
    }
#pragma GCC unroll 16
    for (int64_t row = 0; row < kRows; ++row) {
      const V factor = hn::Set(d, a[row * a_row]);
      low[row] = hn::MulAdd(factor, b0, low[row]);
      high[row] = hn::MulAdd(factor, b1, high[row]);
    }
    a += a_depth;
    b += b_depth;
  }
#pragma GCC unroll 16
  for (int64_t row = 0; row < kRows; ++row) {
    if (row < target.rows) store_row(target, row, low[row], high[row]);
  }
}

/// The tile of `target.rows` rows with no more work than the next multiple of a third of a tile.
template <bool kPacked, class W, class C>
HWY_ATTR inline void multiply_tile(const TileOperands<W>& in, const TileTarget<W, C>& target) {
  constexpr int64_t kThird = kTileRows / 3;
  if (target.rows > 2 * kThird) {
    multiply_rows<kTileRows, kPacked>(in, target);
  } else if (target.rows > kThird) {
    multiply_rows<2 * kThird, kPacked>(in, target);
  } else {
    multiply_rows<kThird, kPacked>(in, target);
  }
}

constexpr int64_t kDepthBlock = 384;
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

/// rows x columns of the result, one block of depth: B is packed, A is packed panel by panel.
template <class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_block(const MatrixView<T>& a, const Panels<W>& panels, int64_t depth,
                             const TileTarget<W, C>& whole) {
  TileOperands<W> in;
  in.a = panels.a;
  in.depth = depth;
  for (int64_t row = 0; row < whole.rows; row += kTileRows) {
    TileTarget<W, C> tile = whole;
    tile.rows = std::min(kTileRows, whole.rows - row);
    pack_panels<kTileRows>(a.data + row * a.row_stride, a.row_stride, a.column_stride, tile.rows,
                           depth, panels.a);
    for (int64_t column = 0; column < whole.columns; column += kTileColumns<W>) {
      tile.columns = std::min(kTileColumns<W>, whole.columns - column);
      tile.c = whole.c + row * whole.c_stride + column;
      tile.base = whole.base ? whole.base + row * whole.base_stride + column : nullptr;
      tile.bias = whole.bias ? whole.bias + column : nullptr;
      in.b = panels.b + column * depth;
      multiply_tile<true>(in, tile);
    }
  }
}

/// whole.rows x whole.columns of the result over the full depth. `b` begins at the first column, `a` at the
/// first row.
template <class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_columns(const MatrixView<T>& a, const MatrixView<T>& b, int64_t total_depth,
                               const Panels<W>& panels, const TileTarget<W, C>& whole) {
  const int64_t depth_block = balanced(total_depth, kDepthBlock, 1);
  TileTarget<W, C> target = whole;
  for (int64_t k = 0; k < total_depth; k += depth_block) {
    const int64_t depth = std::min(depth_block, total_depth - k);
    pack_panels<kTileColumns<W>>(b.data + k * b.row_stride, b.column_stride, b.row_stride,
                                 whole.columns, depth, panels.b);
    const MatrixView<T> part{a.data + k * a.column_stride, a.row_stride, a.column_stride};
    multiply_block<T, C>(part, panels, depth, target);
    target.base = whole.c;
    target.base_stride = whole.c_stride;
    target.bias = nullptr;
  }
}

/// A narrow result: summed up wide, block of rows by block of rows, then rounded.
template <class T, class C, class W = Wide<T>>
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
    multiply_columns<T, W>({a.data + row * a.row_stride, a.row_stride, a.column_stride}, b, depth,
                           panels, part);
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
template <class T, class C>
HWY_ATTR inline int64_t column_limit(int64_t rows, int64_t depth) {
  using W = Wide<T>;
  if (std::is_same_v<C, W> || depth <= kDepthBlock) return kColumnBlock<W>;
  const int64_t row_block = balanced(rows, kSumRows, kTileRows);
  const int64_t fit = kNarrowSums / row_block / kTileColumns<W> * kTileColumns<W>;
  return std::min(kColumnBlock<W>, fit);
}

/// The part [row_begin, row_end) x [column_begin, column_end) of c.
template <class T, class C>
HWY_ATTR void gemm_range(const GemmCall<T, C>& call, int64_t row_begin, int64_t row_end,
                         int64_t column_begin, int64_t column_end) {
  using W = Wide<T>;
  constexpr bool kNarrow = !std::is_same_v<C, W>;
  const bool sums = kNarrow && call.depth > kDepthBlock;
  const Panels<W> panels = thread_panels<W>(kNarrow);
  const int64_t rows = row_end - row_begin, all_columns = column_end - column_begin;
  const int64_t column_block =
      balanced(all_columns, column_limit<T, C>(rows, call.depth), kTileColumns<W>);
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
      multiply_narrow<T, C>(a, b, call.depth, panels, target);
    } else {
      multiply_columns<T, C>(a, b, call.depth, panels, target);
    }
  }
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
