// Matrix tiles (tile_unit.h) under the blocks of gemm_tile-inl.h. Included once per target by
// foreach_target.h.
//
// B is packed in panels of 16 columns: [pair of depths][column], 32 depths to a tile. Rows of A lie
// in memory as tiles want them where depths are neighbours; else tiles are packed, 128 rows at a
// time, and at ragged ends 32 rows. Depths are padded with 0 to whole tiles.
#if defined(STRAIT_KERNEL_GEMM_MATRIX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_GEMM_MATRIX_INL_H_
#undef STRAIT_KERNEL_GEMM_MATRIX_INL_H_
#else
#define STRAIT_KERNEL_GEMM_MATRIX_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "strait/kernel/gemm_pack-inl.h"
#include "strait/kernel/tile_unit.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kUnit = kTileUnitRows;  // rows of A, columns of B, pairs of depths
constexpr int64_t kMatrixDepth = 2 * kUnit;
constexpr int64_t kMatrixRows = 2 * kUnit, kMatrixColumns = 2 * kUnit;  // of a block of tiles
/// Numbers of bf16 that stand for one.
template <class T>
constexpr int64_t kNumParts = sizeof(T) == sizeof(Bfloat16) ? 1 : 3;

constexpr int64_t kTileWords = kUnit * kUnit;

inline int64_t whole_units(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

/// Panels that are joined from rows side by side: 256 bytes of each row, which memory delivers
/// faster than 32 at a time.
constexpr int64_t kJoinedPanels = 8;

/// Panels of 16 entries: [pairs][16], pairs padded to whole tiles.
HWY_ATTR inline void pack_matrix_panels(const MatrixView<Bfloat16>& in, int64_t entries,
                                        int64_t depth, uint32_t* out) {
  const int64_t pairs = (depth + 1) / 2, padded = whole_units(depth, kMatrixDepth) / 2;
  const int64_t panel = kUnit * padded;
  const auto pad = [&](uint32_t* to) { std::fill(to + kUnit * pairs, to + panel, 0U); };
  int64_t begin = 0;
  const int64_t step = kJoinedPanels * kUnit;
  for (; in.row_stride == 1 && depth % 2 == 0 && begin + step <= entries; begin += step) {
    for (int64_t k = 0; k < depth; k += 2) {
      const Bfloat16* row = in.data + begin + k * in.column_stride;
      for (int64_t p = 0; p < kJoinedPanels; ++p)
        join_rows<kUnit>(row + p * kUnit, in.column_stride, out + p * panel + k / 2 * kUnit);
    }
    for (int64_t p = 0; p < kJoinedPanels; ++p, out += panel) pad(out);
  }
  for (; begin < entries; begin += kUnit, out += panel) {
    pack_panels<kUnit>({in.data + begin * in.row_stride, in.row_stride, in.column_stride},
                       std::min(kUnit, entries - begin), depth, out);
    pad(out);
  }
}

/// Square of 16 words, transposed; rows of `out` are `stride` words apart.
HWY_ATTR inline void transpose_unit(const uint32_t* in, uint32_t* out, int64_t stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t row = 0; row < kUnit; ++row)
    for (int64_t column = 0; column < kUnit; ++column)
      out[column * stride + row] = in[row * kUnit + column];
#else
  const Words d;
  constexpr int64_t kLane = lanes_of(Words()), kRows = kLane < kUnit ? kLane : kUnit;
  for (int64_t row = 0; row < kUnit; row += kRows) {
    for (int64_t column = 0; column < kUnit; column += 4) {
      hn::Vec<Words> t[4];
      transpose_words<kRows>(reinterpret_cast<const uint8_t*>(in + row * kUnit + column),
                             kTileUnitBytes, t);
#pragma GCC unroll 4
      for (int64_t w = 0; w < 4; ++w) hn::StoreU(t[w], d, out + (column + w) * stride + row);
    }
  }
#endif
}

/// Rows of bf16 as tiles read them, in bytes: from row to row of a tile, from a tile to that of the
/// next depths, and to that of the next 16 rows.
struct MatrixRows {
  const uint8_t* data = nullptr;
  int64_t stride = 0, step = kTileUnitBytes, below = 0;
};
inline MatrixRows rows_in_place(const void* data, int64_t stride) {
  return {static_cast<const uint8_t*>(data), stride, kTileUnitBytes, kUnit * stride};
}

/// Rows with neighbouring depths, padded to whole tiles of rows and depths.
HWY_ATTR inline MatrixRows copy_rows(const MatrixView<Bfloat16>& in, int64_t rows, int64_t depth,
                                     uint32_t* out) {
  const int64_t padded = whole_units(depth, kMatrixDepth);
  Bfloat16* to = reinterpret_cast<Bfloat16*>(out);
  for (int64_t row = 0; row < rows; ++row, to += padded) {
    std::copy_n(in.data + row * in.row_stride, depth, to);
    std::fill(to + depth, to + padded, Bfloat16{});
  }
  std::fill_n(to, (whole_units(rows, kUnit) - rows) * padded, Bfloat16{});
  return rows_in_place(out, 2 * padded);
}

/// Announces the next 32 depths of `rows` neighbours to the memory.
HWY_ATTR inline void fetch_depths(const Bfloat16* from, int64_t stride, int64_t rows) {
  constexpr int64_t kLine = 32;
  for (int64_t depth = 0; depth < kMatrixDepth; ++depth)
    for (int64_t row = 0; row < rows; row += kLine) __builtin_prefetch(from + depth * stride + row);
}

/// Rows of a group whose depths lie apart, as tiles one behind the other: pairs side by side first,
/// then the square transposed. 32 depths of all rows at a time, so that neighbours in memory are
/// read together.
HWY_ATTR inline void turn_rows(const MatrixView<Bfloat16>& in, int64_t rows, int64_t depth,
                               uint32_t* out) {
  alignas(64) uint32_t square[kTileWords];
  const int64_t strip = whole_units(depth, kMatrixDepth) / 2 * kUnit;  // 16 rows, all depths
  for (int64_t k = 0; k < depth; k += kMatrixDepth) {
    const int64_t depths = std::min(kMatrixDepth, depth - k);
    const Bfloat16* from = in.data + k * in.column_stride;
    if (k + 2 * kMatrixDepth <= depth)
      fetch_depths(from + kMatrixDepth * in.column_stride, in.column_stride, rows);
    for (int64_t row = 0; row < rows; row += kUnit) {
      pack_panels<kUnit>({from + row * in.row_stride, in.row_stride, in.column_stride},
                         std::min(kUnit, rows - row), depths, square);
      std::fill(square + (depths + 1) / 2 * kUnit, square + kTileWords, 0U);
      transpose_unit(square, out + row / kUnit * strip + k / 2 * kUnit, kUnit);
    }
  }
}

/// Rows of A that are prepared together.
constexpr int64_t kRowGroup = 4 * kMatrixRows;

/// Up to kRowGroup rows of A over one block of depth, of which `rows_of` gives each 32.
template <class T>
struct MatrixGroup {
  const MatrixView<T>& in;
  int64_t rows, depth;
  uint32_t* packed;
  bool turned() const { return in.column_stride != 1; }
};
HWY_ATTR inline void prepare_rows(const MatrixGroup<Bfloat16>& group) {
  if (group.turned()) turn_rows(group.in, group.rows, group.depth, group.packed);
}
HWY_ATTR inline MatrixRows rows_of(const MatrixGroup<Bfloat16>& group, int64_t row) {
  const MatrixView<Bfloat16>& in = group.in;
  const int64_t rows = std::min(kMatrixRows, group.rows - row);
  if (group.turned()) {
    const int64_t strip = whole_units(group.depth, kMatrixDepth) / 2 * kUnit;
    const uint32_t* tiles = group.packed + row / kUnit * strip;
    return {reinterpret_cast<const uint8_t*>(tiles), kTileUnitBytes, kUnit * kTileUnitBytes,
            4 * strip};
  }
  const Bfloat16* data = in.data + row * in.row_stride;
  if (rows % kUnit == 0 && group.depth % kMatrixDepth == 0)
    return rows_in_place(data, 2 * in.row_stride);
  return copy_rows({data, in.row_stride, 1}, rows, group.depth, group.packed);
}

/// Operands of one block of tiles: `b` two panels of `steps` times as many tiles as there are
/// parts, one behind the other.
struct MatrixOperands {
  MatrixRows a;
  const uint8_t* b = nullptr;
  int64_t steps = 0;  // of 32 depths
};

/// The registers of a block: sums in 0 to 3, rows of A in 4 and 5, columns of B in 6 and 7. kTall:
/// more than 16 rows; kBroad: more than 16 columns.
template <bool kTall, bool kBroad, class Tiles>
struct BlockRegisters {
  Tiles& tiles;
  const MatrixOperands& in;

  HWY_ATTR void zero() const {
    tiles.template zero<0>();
    if constexpr (kBroad) tiles.template zero<1>();
    if constexpr (kTall) tiles.template zero<2>();
    if constexpr (kTall && kBroad) tiles.template zero<3>();
  }
  HWY_ATTR void load_rows(int64_t offset) const {
    tiles.template load<4>(in.a.data + offset, in.a.stride);
    if constexpr (kTall) tiles.template load<5>(in.a.data + in.a.below + offset, in.a.stride);
  }
  HWY_ATTR void load_columns(const uint8_t* b, const uint8_t* beside) const {
    tiles.template load<6>(b, kTileUnitBytes);
    if constexpr (kBroad) tiles.template load<7>(beside, kTileUnitBytes);
  }
  HWY_ATTR void multiply() const {
    tiles.template dot<0, 4, 6>();
    if constexpr (kBroad) tiles.template dot<1, 4, 7>();
    if constexpr (kTall) tiles.template dot<2, 5, 6>();
    if constexpr (kTall && kBroad) tiles.template dot<3, 5, 7>();
  }
  HWY_ATTR void store(float* sums) const {
    constexpr int64_t kRow = 4 * kMatrixColumns;
    tiles.template store<0>(sums, kRow);
    if constexpr (kBroad) tiles.template store<1>(sums + kUnit, kRow);
    if constexpr (kTall) tiles.template store<2>(sums + kUnit * kMatrixColumns, kRow);
    if constexpr (kTall && kBroad)
      tiles.template store<3>(sums + kUnit * kMatrixColumns + kUnit, kRow);
  }
};

/// sums[32][32] = a b.
template <int64_t kParts, bool kTall, bool kBroad, class Tiles>
HWY_ATTR void multiply_units(Tiles& tiles, const MatrixOperands& in, float* sums) {
  constexpr int64_t kTileSize = kTileUnitRows * kTileUnitBytes;
  const BlockRegisters<kTall, kBroad, Tiles> block{tiles, in};
  const int64_t beside = in.steps * kParts * kTileSize;
  block.zero();
  for (int64_t step = 0; step < in.steps; ++step) {
    const auto rows = [&](int64_t part)
                          HWY_ATTR { block.load_rows(step * in.a.step + part * kTileSize); };
    const auto columns = [&](int64_t part) HWY_ATTR {
      const uint8_t* b = in.b + (step * kParts + part) * kTileSize;
      block.load_columns(b, b + beside);
    };
    if constexpr (kParts == 3) {  // an order that loads the fewest tiles
      rows(2), columns(0), block.multiply();
      rows(1), block.multiply();
      columns(1), block.multiply();
      rows(0), block.multiply();
      columns(2), block.multiply();
    } else {
      rows(0);
    }
    columns(0), block.multiply();
  }
  block.store(sums);
}

/// What rows x columns need of a block of 32 x 32.
template <int64_t kParts, class Tiles>
HWY_ATTR void multiply_matrix_block(Tiles& tiles, const MatrixOperands& in, int64_t rows,
                                    int64_t columns, float* sums) {
  const bool tall = rows > kUnit, broad = columns > kUnit;
  if (tall && broad) return multiply_units<kParts, true, true>(tiles, in, sums);
  if (tall) return multiply_units<kParts, true, false>(tiles, in, sums);
  if (broad) return multiply_units<kParts, false, true>(tiles, in, sums);
  multiply_units<kParts, false, false>(tiles, in, sums);
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
