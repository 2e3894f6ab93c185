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
#include <cstring>

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

/// Square of 16 words, rows of `in` `stride` bytes apart, transposed; those of `out` `out_stride`
/// words.
HWY_ATTR inline void transpose_unit(const void* in, int64_t stride, uint32_t* out,
                                    int64_t out_stride = kUnit) {
  const auto* from = static_cast<const uint8_t*>(in);
#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86
  __m512i r[16], t[16];
#pragma GCC unroll 16
  for (int64_t i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from + i * stride);
#pragma GCC unroll 8
  for (int64_t i = 0; i < 16; i += 2) {  // words of two rows
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int64_t i = 0; i < 16; i += 4) {  // of four: word w of the rows from i on is r[i + w]
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  constexpr int kEven = 0x88, kOdd = 0xdd;  // quarters of two vectors
#pragma GCC unroll 4
  for (int64_t w = 0; w < 4; ++w) {
    t[w] = _mm512_shuffle_i32x4(r[w], r[w + 4], kEven);
    t[w + 4] = _mm512_shuffle_i32x4(r[w], r[w + 4], kOdd);
    t[w + 8] = _mm512_shuffle_i32x4(r[w + 8], r[w + 12], kEven);
    t[w + 12] = _mm512_shuffle_i32x4(r[w + 8], r[w + 12], kOdd);
  }
#pragma GCC unroll 8
  for (int64_t w = 0; w < 8; ++w) {
    _mm512_storeu_si512(out + w * out_stride, _mm512_shuffle_i32x4(t[w], t[w + 8], kEven));
    _mm512_storeu_si512(out + (w + 8) * out_stride, _mm512_shuffle_i32x4(t[w], t[w + 8], kOdd));
  }
#elif HWY_TARGET == HWY_SCALAR
  for (int64_t row = 0; row < kUnit; ++row)
    for (int64_t column = 0; column < kUnit; ++column)
      std::memcpy(out + column * out_stride + row, from + row * stride + 4 * column, 4);
#else
  const Words d;
  constexpr int64_t kLane = lanes_of(Words()), kRows = kLane < kUnit ? kLane : kUnit;
  for (int64_t row = 0; row < kUnit; row += kRows) {
    for (int64_t column = 0; column < kUnit; column += 4) {
      hn::Vec<Words> t[4];
      transpose_words<kRows>(from + row * stride + 4 * column, stride, t);
#pragma GCC unroll 4
      for (int64_t w = 0; w < 4; ++w) hn::StoreU(t[w], d, out + (column + w) * out_stride + row);
    }
  }
#endif
}

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
  while (in.row_stride == 1 && depth % 2 == 0 && begin + 2 * kUnit <= entries) {
    const int64_t panels = std::min(kJoinedPanels, (entries - begin) / (2 * kUnit) * 2);
    for (int64_t k = 0; k < depth; k += 2) {
      const Bfloat16* row = in.data + begin + k * in.column_stride;
      uint32_t* to = out + k / 2 * kUnit;
      for (int64_t p = 0; p < panels; p += 2)
        join_broad(row + p * kUnit, in.column_stride, to + p * panel, to + (p + 1) * panel);
    }
    for (int64_t p = 0; p < panels; ++p, out += panel) pad(out);
    begin += panels * kUnit;
  }
  for (; begin < entries; begin += kUnit, out += panel) {
    const Bfloat16* from = in.data + begin * in.row_stride;
    if (in.column_stride == 1 && depth % kMatrixDepth == 0 && begin + kUnit <= entries) {
      for (int64_t k = 0; k < depth; k += kMatrixDepth)
        transpose_unit(from + k, 2 * in.row_stride, out + k / 2 * kUnit);
      continue;
    }
    pack_panels<kUnit>({from, in.row_stride, in.column_stride}, std::min(kUnit, entries - begin),
                       depth, out);
    pad(out);
  }
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
  alignas(64) uint32_t squares[2 * kTileWords];
  const int64_t strip = whole_units(depth, kMatrixDepth) / 2 * kUnit;  // 16 rows, all depths
  for (int64_t k = 0; k < depth; k += kMatrixDepth) {
    const int64_t depths = std::min(kMatrixDepth, depth - k);
    const Bfloat16* from = in.data + k * in.column_stride;
    if (k + 2 * kMatrixDepth <= depth)
      fetch_depths(from + kMatrixDepth * in.column_stride, in.column_stride, rows);
    const auto turn = [&](int64_t row, const uint32_t* square) HWY_ATTR {
      transpose_unit(square, kTileUnitBytes, out + row / kUnit * strip + k / 2 * kUnit);
    };
    int64_t row = 0;
    for (; depths == kMatrixDepth && row + 2 * kUnit <= rows; row += 2 * kUnit) {
      for (int64_t pair = 0; pair < kUnit; ++pair)
        join_broad(from + row + 2 * pair * in.column_stride, in.column_stride,
                   squares + pair * kUnit, squares + kTileWords + pair * kUnit);
      turn(row, squares);
      turn(row + kUnit, squares + kTileWords);
    }
    for (; row < rows; row += kUnit) {
      pack_panels<kUnit>({from + row * in.row_stride, in.row_stride, in.column_stride},
                         std::min(kUnit, rows - row), depths, squares);
      std::fill(squares + (depths + 1) / 2 * kUnit, squares + kTileWords, 0U);
      turn(row, squares);
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
  /// Sums in memory, rows `stride` numbers apart.
  HWY_ATTR void load_sums(const float* sums, int64_t stride) const {
    tiles.template load<0>(sums, 4 * stride);
    if constexpr (kBroad) tiles.template load<1>(sums + kUnit, 4 * stride);
    if constexpr (kTall) tiles.template load<2>(sums + kUnit * stride, 4 * stride);
    if constexpr (kTall && kBroad)
      tiles.template load<3>(sums + kUnit * stride + kUnit, 4 * stride);
  }
  HWY_ATTR void store(float* sums, int64_t stride) const {
    tiles.template store<0>(sums, 4 * stride);
    if constexpr (kBroad) tiles.template store<1>(sums + kUnit, 4 * stride);
    if constexpr (kTall) tiles.template store<2>(sums + kUnit * stride, 4 * stride);
    if constexpr (kTall && kBroad)
      tiles.template store<3>(sums + kUnit * stride + kUnit, 4 * stride);
  }
};

/// Where the sums of a block go, rows `stride` apart; `base`: what they are added to, or null.
struct MatrixSums {
  float* to = nullptr;
  int64_t stride = kMatrixColumns;
  const float* base = nullptr;
  int64_t base_stride = 0;
};

/// sums[32][32] = base + a b. Calls between(step) after every 32 depths, for what vectors do while
/// tiles multiply.
template <int64_t kParts, bool kTall, bool kBroad, class Tiles, class Between>
HWY_ATTR void multiply_units(Tiles& tiles, const MatrixOperands& in, const MatrixSums& sums,
                             const Between& between) {
  constexpr int64_t kTileSize = kTileUnitRows * kTileUnitBytes;
  const BlockRegisters<kTall, kBroad, Tiles> block{tiles, in};
  const int64_t beside = in.steps * kParts * kTileSize;
  if (sums.base) {
    block.load_sums(sums.base, sums.base_stride);
  } else {
    block.zero();
  }
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
    between(step);
  }
  block.store(sums.to, sums.stride);
}

/// What rows x columns need of a block of 32 x 32.
template <int64_t kParts, class Tiles, class Between>
HWY_ATTR void multiply_matrix_block(Tiles& tiles, const MatrixOperands& in, int64_t rows,
                                    int64_t columns, const MatrixSums& sums,
                                    const Between& between) {
  const bool tall = rows > kUnit, broad = columns > kUnit;
  if (tall && broad) return multiply_units<kParts, true, true>(tiles, in, sums, between);
  if (tall) return multiply_units<kParts, true, false>(tiles, in, sums, between);
  if (broad) return multiply_units<kParts, false, true>(tiles, in, sums, between);
  multiply_units<kParts, false, false>(tiles, in, sums, between);
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
