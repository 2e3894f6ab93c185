// The register tile of matrix products and the packing that feeds it, for one instruction set. Included
// once per target by foreach_target.h.
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
template <class T>
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(hn::ScalableTag<T>()));
template <class T>
constexpr int64_t kTileColumns = kTileVectors* kLanes<T>;

/// Where a tile's result goes. rows, columns may be less than the tile's.
template <class T>
struct TileTarget {
  T* c = nullptr;
  int64_t c_stride = 0;
  int64_t rows = 0, columns = 0;
  bool accumulate = false;
  const T* bias = nullptr;
};

template <class T>
HWY_ATTR inline void store_partial(const T* tile, const TileTarget<T>& target) {
  for (int64_t row = 0; row < target.rows; ++row) {
    T* out = target.c + row * target.c_stride;
    const T* in = tile + row * kTileColumns<T>;
    for (int64_t column = 0; column < target.columns; ++column) {
      const T base = target.accumulate ? out[column] : (target.bias ? target.bias[column] : T{0});
      out[column] = base + in[column];
    }
  }
}

/// a: [depth][kTileRows], b: [depth][kTileColumns], both packed and padded.
template <class T>
HWY_ATTR inline void multiply_tile(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, int64_t depth,
                                   const TileTarget<T>& target) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int64_t kRows = kTileRows, kLane = kLanes<T>;
  V low[kRows], high[kRows];
#pragma GCC unroll 16
  for (int64_t row = 0; row < kRows; ++row) low[row] = high[row] = hn::Zero(d);
  for (int64_t k = 0; k < depth; ++k) {
    const V b0 = hn::Load(d, b + k * 2 * kLane);
    const V b1 = hn::Load(d, b + k * 2 * kLane + kLane);
#pragma GCC unroll 16
    for (int64_t row = 0; row < kRows; ++row) {
      const V factor = hn::Set(d, a[k * kRows + row]);
      low[row] = hn::MulAdd(factor, b0, low[row]);
      high[row] = hn::MulAdd(factor, b1, high[row]);
    }
  }
  if (target.rows < kRows || target.columns < 2 * kLane) {
    HWY_ALIGN T tile[kRows * 2 * kLane];
#pragma GCC unroll 16
    for (int64_t row = 0; row < kRows; ++row) {
      hn::Store(low[row], d, tile + row * 2 * kLane);
      hn::Store(high[row], d, tile + row * 2 * kLane + kLane);
    }
    store_partial(tile, target);
    return;
  }
#pragma GCC unroll 16
  for (int64_t row = 0; row < kRows; ++row) {
    T* out = target.c + row * target.c_stride;
    if (target.accumulate) {
      low[row] = hn::Add(hn::LoadU(d, out), low[row]);
      high[row] = hn::Add(hn::LoadU(d, out + kLane), high[row]);
    } else if (target.bias) {
      low[row] = hn::Add(hn::LoadU(d, target.bias), low[row]);
      high[row] = hn::Add(hn::LoadU(d, target.bias + kLane), high[row]);
    }
    hn::StoreU(low[row], d, out);
    hn::StoreU(high[row], d, out + kLane);
  }
}

#if HWY_TARGET != HWY_SCALAR
/// Four (fp32) or two (fp64) neighbouring entries at as many depths: a transposition in registers.
HWY_ATTR inline void transpose_square(const float* in, int64_t stride, float* out,
                                      int64_t out_stride) {
  const hn::FixedTag<float, 4> d;
  const auto r0 = hn::LoadU(d, in), r1 = hn::LoadU(d, in + stride);
  const auto r2 = hn::LoadU(d, in + 2 * stride), r3 = hn::LoadU(d, in + 3 * stride);
  const auto t0 = hn::InterleaveLower(d, r0, r1), t1 = hn::InterleaveLower(d, r2, r3);
  const auto t2 = hn::InterleaveUpper(d, r0, r1), t3 = hn::InterleaveUpper(d, r2, r3);
  hn::StoreU(hn::ConcatLowerLower(d, t1, t0), d, out);
  hn::StoreU(hn::ConcatUpperUpper(d, t1, t0), d, out + out_stride);
  hn::StoreU(hn::ConcatLowerLower(d, t3, t2), d, out + 2 * out_stride);
  hn::StoreU(hn::ConcatUpperUpper(d, t3, t2), d, out + 3 * out_stride);
}
HWY_ATTR inline void transpose_square(const Bfloat16* in, int64_t stride, float* out,
                                      int64_t out_stride) {
  const hn::FixedTag<float, 4> d;
  HWY_ALIGN float rows[16];
  for (int64_t row = 0; row < 4; ++row) {
    hn::Store(load_part(d, in + row * stride, 4), d, rows + 4 * row);
  }
  transpose_square(rows, 4, out, out_stride);
}
HWY_ATTR inline void transpose_square(const double* in, int64_t stride, double* out,
                                      int64_t out_stride) {
  const hn::FixedTag<double, 2> d;
  const auto r0 = hn::LoadU(d, in), r1 = hn::LoadU(d, in + stride);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, out);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, out + out_stride);
}

#endif

/// One panel of `kWidth` entries x depth, entries contiguous in depth (depth_stride == 1).
template <int64_t kWidth, class T, class P>
HWY_ATTR inline void pack_transposed(const T* in, int64_t entry_stride, int64_t depth, P* out) {
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int64_t kSquare = 16 / static_cast<int64_t>(sizeof(P));
  for (; kWidth % kSquare == 0 && k + kSquare <= depth; k += kSquare) {
    for (int64_t entry = 0; entry < kWidth; entry += kSquare) {
      transpose_square(in + entry * entry_stride + k, entry_stride, out + k * kWidth + entry,
                       kWidth);
    }
  }
#endif
  for (; k < depth; ++k) {
    for (int64_t entry = 0; entry < kWidth; ++entry)
      out[k * kWidth + entry] = in[entry * entry_stride + k];
  }
}

/// Packs `entries` rows of A (or columns of B) into panels [depth][kWidth]; the last is padded with 0.
template <int64_t kWidth, class T, class P>
HWY_ATTR inline void pack_panels(const T* in, int64_t entry_stride, int64_t depth_stride,
                                 int64_t entries, int64_t depth, P* out) {
  for (int64_t begin = 0; begin < entries; begin += kWidth, out += kWidth * depth) {
    const T* panel = in + begin * entry_stride;
    const int64_t width = std::min(kWidth, entries - begin);
    if (width == kWidth && depth_stride == 1 && entry_stride != 1) {
      pack_transposed<kWidth>(panel, entry_stride, depth, out);
      continue;
    }
    if (width == kWidth && entry_stride == 1) {
      for (int64_t k = 0; k < depth; ++k) {
        const T* row = panel + k * depth_stride;
#pragma GCC unroll 32
        for (int64_t entry = 0; entry < kWidth; ++entry) out[k * kWidth + entry] = row[entry];
      }
      continue;
    }
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t entry = 0; entry < width; ++entry) {
        out[k * kWidth + entry] = panel[entry * entry_stride + k * depth_stride];
      }
      for (int64_t entry = width; entry < kWidth; ++entry) out[k * kWidth + entry] = P{0};
    }
  }
}

/// Depth of a packed block: a panel of B (depth x tile width) should stay in the first-level cache.
template <class T>
constexpr int64_t kDepthBlock = 1024 / static_cast<int64_t>(sizeof(T));
constexpr int64_t kRowBlock = 144;
template <class T>
constexpr int64_t kColumnBlock = 512;

/// Splits `total` into equal blocks of at most `limit`, each a multiple of `unit` but the last.
inline int64_t balanced(int64_t total, int64_t limit, int64_t unit) {
  const int64_t blocks = (total + limit - 1) / limit;
  const int64_t size = (total + blocks - 1) / blocks;
  return (size + unit - 1) / unit * unit;
}

template <class T>
struct PackedBlock {
  alignas(128) T a[(kRowBlock + kTileRows) * kDepthBlock<T>];
  alignas(128) T b[(kColumnBlock<T> + kTileColumns<T>)*kDepthBlock<T>];
};

/// All tiles of one packed block: rows x columns, starting at c.
template <class T>
HWY_ATTR void multiply_block(const PackedBlock<T>& packed, const TileTarget<T>& whole, int64_t rows,
                             int64_t columns, int64_t depth) {
  for (int64_t column = 0; column < columns; column += kTileColumns<T>) {
    for (int64_t row = 0; row < rows; row += kTileRows) {
      TileTarget<T> tile = whole;
      tile.c += row * whole.c_stride + column;
      tile.bias = whole.bias ? whole.bias + column : nullptr;
      tile.rows = std::min<int64_t>(kTileRows, rows - row);
      tile.columns = std::min<int64_t>(kTileColumns<T>, columns - column);
      multiply_tile(packed.a + row * depth, packed.b + column * depth, depth, tile);
    }
  }
}

/// The part [row_begin, row_end) x [column_begin, column_end) of c.
template <class T, class C>
HWY_ATTR void gemm_range(const GemmCall<T, C>& call, int64_t row_begin, int64_t row_end,
                         int64_t column_begin, int64_t column_end) {
  static_assert(std::is_same_v<C, Wide<T>>, "narrow results are rounded from wide ones");
  using W = Wide<T>;
  PackedBlock<W> packed;
  const int64_t row_block = balanced(row_end - row_begin, kRowBlock, kTileRows);
  const int64_t column_block =
      balanced(column_end - column_begin, kColumnBlock<W>, kTileColumns<W>);
  const int64_t depth_block = balanced(call.depth, kDepthBlock<W>, 1);
  for (int64_t column = column_begin; column < column_end; column += column_block) {
    const int64_t columns = std::min(column_block, column_end - column);
    for (int64_t k = 0; k < call.depth; k += depth_block) {
      const int64_t depth = std::min(depth_block, call.depth - k);
      pack_panels<kTileColumns<W>>(
          call.b.data + k * call.b.row_stride + column * call.b.column_stride, call.b.column_stride,
          call.b.row_stride, columns, depth, packed.b);
      HWY_ALIGN W bias[kColumnBlock<W> + kTileColumns<W>];
      const bool biased = call.bias && !call.accumulate && k == 0;
      if (biased) std::copy_n(call.bias + column, columns, bias);
      for (int64_t row = row_begin; row < row_end; row += row_block) {
        const int64_t rows = std::min(row_block, row_end - row);
        pack_panels<kTileRows>(call.a.data + row * call.a.row_stride + k * call.a.column_stride,
                               call.a.row_stride, call.a.column_stride, rows, depth, packed.a);
        TileTarget<W> target;
        target.c = call.c + row * call.c_stride + column;
        target.c_stride = call.c_stride;
        target.accumulate = call.accumulate || k > 0;
        target.bias = biased ? bias : nullptr;
        multiply_block(packed, target, rows, columns, depth);
      }
    }
  }
}

/// The same with a bf16 result: block by block in fp32, rounded at the end.
HWY_ATTR inline void gemm_range(const GemmCall<Bfloat16>& call, int64_t row_begin, int64_t row_end,
                                int64_t column_begin, int64_t column_end) {
  const hn::ScalableTag<float> d;
  HWY_ALIGN float sums[kRowBlock * kColumnBlock<float>];
  for (int64_t column = column_begin; column < column_end; column += kColumnBlock<float>) {
    const int64_t columns = std::min(kColumnBlock<float>, column_end - column);
    for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
      const int64_t rows = std::min(kRowBlock, row_end - row);
      GemmCall<Bfloat16, float> part{rows, columns, call.depth, call.a, call.b, sums, columns};
      part.a.data += row * call.a.row_stride;
      part.b.data += column * call.b.column_stride;
      part.bias = call.bias && !call.accumulate ? call.bias + column : nullptr;
      gemm_range(part, 0, rows, 0, columns);
      for (int64_t r = 0; r < rows; ++r) {
        Bfloat16* out = call.c + (row + r) * call.c_stride + column;
        for (int64_t c = 0; c < columns; c += lanes_of(d)) {
          auto value = load_part(d, sums + r * columns + c, columns - c);
          if (call.accumulate) value = hn::Add(value, load_part(d, out + c, columns - c));
          store_part(d, value, out + c, columns - c);
        }
      }
    }
  }
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
