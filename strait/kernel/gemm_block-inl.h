// Matrix products over one part of a result: blocks, their packing, and the ways to multiply them.
// Included once per target by foreach_target.h.
//
// Blocks of B (kDepthBlock deep, kColumnBlock wide) are packed once and stay in the second-level
// cache; of A one panel of kTileRows rows at a time is packed and stays in the first-level cache
// while the block of B streams past it. Where A has few rows it is the other way around
// (multiply_few_rows; of matrix tiles multiply_turned).
#if defined(STRAIT_KERNEL_GEMM_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_GEMM_BLOCK_INL_H_
#undef STRAIT_KERNEL_GEMM_BLOCK_INL_H_
#else
#define STRAIT_KERNEL_GEMM_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "strait/kernel/gemm.h"
#include "strait/kernel/gemm_matrix-inl.h"
#include "strait/kernel/gemm_pack-inl.h"
#include "strait/kernel/gemm_scratch.h"
#include "strait/kernel/gemm_split-inl.h"
#include "strait/kernel/gemm_tile-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kDepthBlock = 384;  // in elements of packed panels: pairs hold two depths
template <class W>
constexpr int64_t kColumnBlock = 3072 / static_cast<int64_t>(sizeof(W));  // 1.2 MB of B
template <class W>
constexpr int64_t kBlockWords = kColumnBlock<W>* kDepthBlock;
/// Of blocks that are less deep, where matrix tiles multiply.
template <class W>
constexpr int64_t kMostColumns = 4 * kColumnBlock<W>;
/// Rows that stay in the second-level cache once packed (384 KB), and how deep they must be to be
/// worth it: where products are less deep, it is the result that takes the time.
template <class W>
constexpr int64_t kFewRows = 1024 / static_cast<int64_t>(sizeof(W));
constexpr int64_t kFewRowsDepth = 64;
/// Sums of a narrow result whose products take several blocks of depth: 1 MB.
constexpr int64_t kNarrowSums = 262144, kSumRows = 1024;

/// Splits `total` into equal blocks of at most `limit`, each a multiple of `unit` but the last.
inline int64_t balanced(int64_t total, int64_t limit, int64_t unit) {
  const int64_t blocks = (total + limit - 1) / limit;
  const int64_t size = (total + blocks - 1) / blocks;
  return (size + unit - 1) / unit * unit;
}

template <class T>
struct GemmOperands {
  MatrixView<T> a, b;
  int64_t depth = 0;
  int64_t next_columns = 0;  // of B, behind these
};

/// The packed operands of the calling thread; `matrix` holds kRowGroup rows of A for matrix tiles.
template <class W>
struct Panels {
  W *a, *b, *bias, *matrix, *sums;
};
template <class W>
HWY_ATTR inline Panels<W> thread_panels(bool sums) {
  constexpr int64_t kA = kTileRows * kDepthBlock + kPackSlack;
  constexpr int64_t kB = (kColumnBlock<W> + kTileColumns<W>)*kDepthBlock + kPackSlack;
  constexpr int64_t kBias = kMostColumns<W> + kTileColumns<W>;
  constexpr int64_t kMatrix = kRowGroup * kDepthBlock;
  constexpr auto aligned = [](int64_t count) { return (count + 31) / 32 * 32; };
  const int64_t elements =
      aligned(kA) + aligned(kB) + aligned(kBias) + aligned(kMatrix) + (sums ? kNarrowSums : 0);
  W* memory = static_cast<W*>(
      thread_scratch(ScratchUse::kProducts, elements * static_cast<int64_t>(sizeof(W))));
  W* const b = memory + aligned(kA);
  W* const bias = b + aligned(kB);
  W* const matrix = bias + aligned(kBias);
  return {memory, b, bias, matrix, matrix + aligned(kMatrix)};
}

template <class T>
inline MatrixView<T> from_row(const MatrixView<T>& view, int64_t row) {
  return {view.data + row * view.row_stride, view.row_stride, view.column_stride};
}

/// The part of a target from (row, column) on, at most rows x columns of it.
template <class W, class C>
inline TileTarget<W, C> part_of(TileTarget<W, C> target, int64_t row, int64_t column, int64_t rows,
                                int64_t columns) {
  target.rows = std::min(rows, target.rows - row);
  target.columns = std::min(columns, target.columns - column);
  target.c += row * target.c_stride + column;
  if (target.base) target.base += row * target.base_stride + column;
  if (target.bias) target.bias += column;
  return target;
}

/// Ways to multiply a block: how panels are packed, and what multiplies them. Blocks of depth have
/// deepest() at most and are multiples of kDepthUnit.
struct WideWay {
  static constexpr int64_t kDepths = 1, kDepthUnit = 1;  // kDepths: in an element of a panel
  template <class W>
  using Packed = W;
};
struct PairWay {
  static constexpr int64_t kDepths = 2, kDepthUnit = 2;
  template <class W>
  using Packed = uint32_t;
};
template <class Tiles>
struct MatrixWay {
  static constexpr int64_t kDepthUnit = kMatrixDepth;
  Tiles& tiles;
};

/// Whether what is packed next is fetched while this is multiplied.
template <class Way>
constexpr bool kFetches = false;
template <class Tiles>
constexpr bool kFetches<MatrixWay<Tiles>> = true;

/// Depths that are done at a time. Rows of bf16 that tiles read where they lie may be deep: sums
/// stay in registers.
template <class Way, class T>
constexpr int64_t deepest(const Way&, const MatrixView<T>&) {
  return Way::kDepths * kDepthBlock;
}
template <class Tiles, class T>
constexpr int64_t deepest(const MatrixWay<Tiles>&, const MatrixView<T>& a) {
  const bool in_place = kNumParts<T> == 1 && a.column_stride == 1;
  return (in_place ? 8 : 2) * kDepthBlock / kNumParts<T>;
}

/// Columns of B, which `turned` has as rows.
template <class Way, class T, class W>
HWY_ATTR void pack_columns(const Way&, const MatrixView<T>& turned, int64_t columns, int64_t depth,
                           W* out) {
  pack_panels<kTileColumns<W>>(turned, columns, depth,
                               reinterpret_cast<typename Way::template Packed<W>*>(out));
}
template <class Tiles>
HWY_ATTR void pack_columns(const MatrixWay<Tiles>&, const MatrixView<Bfloat16>& turned,
                           int64_t columns, int64_t depth, float* out) {
  pack_matrix_panels(turned, columns, depth, reinterpret_cast<uint32_t*>(out));
}
template <class Tiles>
HWY_ATTR void pack_columns(const MatrixWay<Tiles>&, const MatrixView<float>& turned,
                           int64_t columns, int64_t depth, float* out) {
  split_panels<true>(turned, columns, depth, reinterpret_cast<uint32_t*>(out));
}

/// rows x columns of the result, one block of depth: B is packed.
template <RowsOfA kForm = RowsOfA::kPacked, class Way, class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_block(const Way&, const MatrixView<T>& a, const Panels<W>& panels,
                             int64_t depth, const TileTarget<W, C>& whole) {
  constexpr bool kPairs = Way::kDepths == 2;
  TileOperands<W> in;
  in.depth = (depth + Way::kDepths - 1) / Way::kDepths;
  for (int64_t row = 0; row < whole.rows; row += kTileRows) {
    const int64_t rows = std::min(kTileRows, whole.rows - row);
    const MatrixView<T> part = from_row(a, row);
    const auto pack_rows = [&]() HWY_ATTR {
      in.a = panels.a;
      pack_panels<kTileRows>(part, rows, depth,
                             reinterpret_cast<typename Way::template Packed<W>*>(panels.a));
    };
    const auto multiply = [&]<RowsOfA kRows>() HWY_ATTR {
      for (int64_t column = 0; column < whole.columns; column += kTileColumns<W>) {
        in.b = panels.b + column * in.depth;
        multiply_tile<kPairs, kRows>(in, part_of(whole, row, column, kTileRows, kTileColumns<W>));
      }
    };
    if constexpr (kForm == RowsOfA::kPrepared) {
      in.a = panels.a + row * in.depth;
    } else if constexpr (kForm == RowsOfA::kInPlace) {
      // Behind the last rows there may be nothing.
      if (rows % kTileRowStep != 0) {
        pack_rows();
        multiply.template operator()<RowsOfA::kPrepared>();
        continue;
      }
      in.a = part.data;
      in.a_row = a.row_stride;
      in.a_depth = a.column_stride;
    } else {
      pack_rows();
    }
    multiply.template operator()<kForm>();
  }
}

/// A block of 32 x 32 sums on its way to its target, some rows at a time while tiles multiply the
/// next one.
template <class C>
class SumStore {
 public:
  float* sums() { return sums_; }
  /// Takes over what stands in sums(), for `steps` calls of step(). kTurned: columns by rows.
  template <bool kTurned = false>
  void begin(const TileTarget<float, C>& target, int64_t steps) {
    target_ = target;
    row_ = 0;
    idle_ = steps > 2 * kIdle ? kIdle : 0;
    rows_per_step_ = (target.rows + steps - idle_ - 1) / (steps - idle_);
    to_turn_ = kTurned;
    from_ = kTurned ? turned_ : sums_;
#ifdef STRAIT_KERNEL_PAIRED
    in_pairs_ = !target.base && target.columns == kMatrixColumns && has_pairs();
#endif
  }
  HWY_ATTR HWY_INLINE void step(int64_t step) {
    if (step < idle_) return;
    store_to(std::min(target_.rows, row_ + rows_per_step_));
  }
  HWY_ATTR HWY_INLINE void finish() { store_to(target_.rows); }

 private:
  /// Steps until what tiles have written can be read without waiting.
  static constexpr int64_t kIdle = 2;

  HWY_ATTR HWY_NOINLINE void turn() {
    to_turn_ = false;
    for (int64_t row = 0; row < kMatrixRows; row += kUnit)
      for (int64_t column = 0; column < kMatrixColumns; column += kUnit)
        transpose_unit(sums_ + column * kMatrixColumns + row, 4 * kMatrixColumns,
                       reinterpret_cast<uint32_t*>(turned_ + row * kMatrixColumns + column),
                       kMatrixColumns);
  }

  HWY_ATTR HWY_INLINE void store_to(int64_t end) {
    if (to_turn_) turn();
    for (; row_ < end; ++row_) {
#ifdef STRAIT_KERNEL_PAIRED
      if constexpr (std::is_same_v<C, Bfloat16>) {
        if (in_pairs_) {
          store_pairs(target_, row_, from_ + row_ * kMatrixColumns);
          continue;
        }
      }
#endif
      store(row_);
    }
  }
  HWY_ATTR HWY_NOINLINE void store(int64_t row) const {
    const hn::ScalableTag<float> d;
    constexpr int64_t kLane = kLanes<float>;
    const float* from = from_ + row * kMatrixColumns;
    for (int64_t column = 0; column < target_.columns; column += 2 * kLane)
      store_row(part_of(target_, 0, column, target_.rows, 2 * kLane), row,
                hn::LoadU(d, from + column), hn::LoadU(d, from + column + kLane));
  }

  alignas(64) float sums_[kMatrixRows * kMatrixColumns];
  alignas(64) float turned_[kMatrixRows * kMatrixColumns];
  const float* from_ = sums_;
  TileTarget<float, C> target_;
  int64_t row_ = 0, rows_per_step_ = 0, idle_ = 0;
  bool to_turn_ = false, in_pairs_ = false;
};

/// Whether products of T are added to what is there in the registers. That is less exact where
/// there are many depths, and left out for fp32. A bias comes between the two.
template <class T>
bool adds_in_registers(const TileTarget<float, float>& target) {
  return kNumParts<T> == 1 && target.bias == nullptr;
}

/// Whether tiles themselves write a block into its target.
template <class T>
bool tiles_write(const TileTarget<float, float>& part) {
  return part.rows % kUnit == 0 && part.columns % kUnit == 0 && part.bias == nullptr &&
         (part.base == nullptr || kNumParts<T> == 1);
}
template <class T>
bool tiles_write(const TileTarget<float, Bfloat16>&) {
  return false;
}

/// Rows in far memory, fetched line by line while other things are done.
class FarRows {
 public:
  FarRows() = default;
  template <class T>
  FarRows(const MatrixView<T>& in, int64_t entries, int64_t depth) {
    const bool neighbours = in.column_stride != 1;  // the entries
    constexpr int64_t kBytes = static_cast<int64_t>(sizeof(T));
    row_ = reinterpret_cast<const uint8_t*>(in.data);
    stride_ = (neighbours ? in.column_stride : in.row_stride) * kBytes;
    rows_ = neighbours ? depth : entries;
    row_bytes_ = (neighbours ? entries : depth) * kBytes;
  }
  int64_t lines() const { return rows_ * ((row_bytes_ + kLine - 1) / kLine); }
  void fetch(int64_t lines) {
    for (; lines > 0 && rows_ > 0; --lines) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += kLine;
      if (at_ >= row_bytes_) {
        at_ = 0;
        row_ += stride_;
        --rows_;
      }
    }
  }

 private:
  static constexpr int64_t kLine = 64;
  const uint8_t* row_ = nullptr;
  int64_t stride_ = 0, rows_ = 0, row_bytes_ = 0, at_ = 0;
};

/// Announces a block of the result to the memory, which is read where it is added to, and first
/// fetched where it is written.
template <class C>
HWY_ATTR void fetch_target(const TileTarget<float, C>& target) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(C));
  for (int64_t row = 0; row < target.rows; ++row)
    for (int64_t column = 0; column < target.columns; column += kLine)
      __builtin_prefetch(target.c + row * target.c_stride + column, 1);
}

/// `far`: what is packed next, fetched meanwhile.
template <RowsOfA = RowsOfA::kPacked, class Tiles, class T, class C>
HWY_ATTR void multiply_block(const MatrixWay<Tiles>& way, const MatrixView<T>& a,
                             const Panels<float>& panels, int64_t depth,
                             const TileTarget<float, C>& whole, FarRows far = {}) {
  SumStore<C> store;
  const int64_t padded = whole_units(depth, kMatrixDepth);
  MatrixOperands in;
  in.steps = padded / kMatrixDepth;
  int64_t fetches = 0;  // in a step
  const auto spread_fetches = [&](int64_t rows) {
    const int64_t blocks = (rows + kMatrixRows - 1) / kMatrixRows *
                           ((whole.columns + kMatrixColumns - 1) / kMatrixColumns);
    fetches = (far.lines() + blocks * in.steps - 1) / (blocks * in.steps);
  };
  spread_fetches(whole.rows);
  const auto between = [&](int64_t step) HWY_ATTR {
    store.step(step);
    far.fetch(fetches);
  };
  for (int64_t first = 0; first < whole.rows; first += kRowGroup) {
    const MatrixView<T> view = from_row(a, first);
    const MatrixGroup<T> group{view, std::min(kRowGroup, whole.rows - first), depth,
                               reinterpret_cast<uint32_t*>(panels.matrix)};
    prepare_rows(group);
    const int64_t next = first + kRowGroup;
    if (group.turned() && next < whole.rows) {
      far = FarRows(from_row(a, next), std::min(kRowGroup, whole.rows - next), depth);
      spread_fetches(group.rows);
    }
    for (int64_t row = 0; row < group.rows; row += kMatrixRows) {
      in.a = rows_of(group, row);
      for (int64_t column = 0; column < whole.columns; column += kMatrixColumns) {
        const auto part = part_of(whole, first + row, column, kMatrixRows, kMatrixColumns);
        if (whole.fetched) fetch_target(part);
        in.b = reinterpret_cast<const uint8_t*>(panels.b + column * padded / 2 * kNumParts<T>);
        MatrixSums sums{store.sums()};
        auto rest = part;  // what is to be done when tiles have stored
        const bool direct = tiles_write<T>(part);
        if constexpr (std::is_same_v<C, float>) {
          if (direct) {
            sums = {part.c, part.c_stride, part.base, part.base_stride};
          } else if (part.base && adds_in_registers<T>(part)) {  // in the same order as whole tiles
            store.finish();
            for (int64_t r = 0; r < part.rows; ++r)
              std::copy_n(part.base + r * part.base_stride, part.columns,
                          store.sums() + r * kMatrixColumns);
            sums.base = store.sums();
            sums.base_stride = kMatrixColumns;
            rest.base = nullptr;
          }
        }
        multiply_matrix_block<kNumParts<T>>(way.tiles, in, part.rows, part.columns, sums, between);
        store.finish();
        if (!direct) store.begin(rest, in.steps);
      }
    }
  }
  store.finish();
}

/// Few rows by many columns, all depths at once: rows of A are packed, and columns of B, whose
/// depths are neighbours, are read where they lie, so that tiles make the result transposed. Sums
/// are those of multiply_block.
template <class Tiles>
HWY_ATTR void multiply_turned(const MatrixWay<Tiles>& way, const GemmOperands<Bfloat16>& operands,
                              const Panels<float>& panels,
                              const TileTarget<float, Bfloat16>& whole) {
  SumStore<Bfloat16> store;
  const int64_t depth = operands.depth, padded = whole_units(depth, kMatrixDepth);
  const int64_t all_columns = whole.columns + operands.next_columns;
  MatrixOperands in;
  in.steps = padded / kMatrixDepth;
  pack_columns(way, operands.a, whole.rows, depth, panels.b);
  const int64_t steps = in.steps * ((whole.rows + kMatrixRows - 1) / kMatrixRows);
  const MatrixView<Bfloat16> turned{operands.b.data, operands.b.column_stride,
                                    operands.b.row_stride};
  for (int64_t column = 0; column < whole.columns; column += kMatrixColumns) {
    const int64_t next = column + kMatrixColumns;
    const MatrixView<Bfloat16> view = from_row(turned, column);
    const MatrixGroup<Bfloat16> group{view, std::min(next, whole.columns) - column, depth,
                                      reinterpret_cast<uint32_t*>(panels.matrix)};
    in.a = rows_of(group, 0);
    FarRows far;
    if (next < all_columns)
      far = FarRows(from_row(turned, next), std::min(kMatrixColumns, all_columns - next), depth);
    const int64_t fetches = (far.lines() + steps - 1) / steps;
    const auto between = [&](int64_t step) HWY_ATTR {
      store.step(step);
      far.fetch(fetches);
    };
    for (int64_t row = 0; row < whole.rows; row += kMatrixRows) {
      const auto part = part_of(whole, row, column, kMatrixRows, kMatrixColumns);
      in.b = reinterpret_cast<const uint8_t*>(panels.b + row * padded / 2);
      multiply_matrix_block<1>(way.tiles, in, part.columns, part.rows, MatrixSums{store.sums()},
                               between);
      store.finish();
      store.template begin<true>(part, in.steps);
    }
  }
  store.finish();
}

/// One block of depth of few rows: all of them packed first, then one panel of B at a time, which
/// stays in the first-level cache while all rows meet it and the next panel is fetched. `turned`
/// has the columns of B as rows.
template <class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_few_rows(const MatrixView<T>& a, const MatrixView<T>& turned,
                                const Panels<W>& panels, int64_t depth,
                                const TileTarget<W, C>& whole) {
  constexpr int64_t kBytes = static_cast<int64_t>(sizeof(T));
  W* const rows_of_a = panels.b + kTileColumns<W> * kDepthBlock + kPackSlack;
  pack_panels<kTileRows>(a, whole.rows, depth, rows_of_a);
  TileOperands<W> in;
  in.b = panels.b;
  in.depth = depth;
  if (turned.column_stride == 1) in.next.period = kTileColumns<W>;
  in.next.stride = turned.row_stride * kBytes;
  in.next.depth_stride = turned.column_stride * kBytes;
  for (int64_t column = 0; column < whole.columns; column += kTileColumns<W>) {
    const MatrixView<T> part = from_row(turned, column);
    pack_panels<kTileColumns<W>>(part, std::min(kTileColumns<W>, whole.columns - column), depth,
                                 panels.b);
    in.next.data =
        reinterpret_cast<const uint8_t*>(part.data + kTileColumns<W> * turned.row_stride);
    for (int64_t row = 0; row < whole.rows; row += kTileRows) {
      in.a = rows_of_a + row * depth;
      multiply_tile<false, RowsOfA::kFew>(in,
                                          part_of(whole, row, column, kTileRows, kTileColumns<W>));
    }
  }
}

/// whole.rows x whole.columns of the result over the full depth. `b` begins at the first column,
/// `a` at the first row.
template <class Way, class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_columns(const Way& way, const GemmOperands<T>& in, const Panels<W>& panels,
                               const TileTarget<W, C>& whole) {
  constexpr bool kWideWay = std::is_same_v<Way, WideWay>;
  const MatrixView<T>&a = in.a, &b = in.b;
  const bool few = kWideWay && whole.rows <= kFewRows<W> && in.depth >= kFewRowsDepth;
  const int64_t depth_block = balanced(in.depth, deepest(way, a), Way::kDepthUnit);
  const auto turned_at = [&](int64_t k, int64_t column) {
    return MatrixView<T>{b.data + k * b.row_stride + column * b.column_stride, b.column_stride,
                         b.row_stride};
  };
  TileTarget<W, C> target = whole;
  for (int64_t k = 0; k < in.depth; k += depth_block) {
    const int64_t depth = std::min(depth_block, in.depth - k), next = k + depth;
    const MatrixView<T> turned = turned_at(k, 0);
    const MatrixView<T> part{a.data + k * a.column_stride, a.row_stride, a.column_stride};
    if constexpr (kWideWay) {
      if (few) multiply_few_rows(part, turned, panels, depth, target);
    }
    if (!few) {
      pack_columns(way, turned, whole.columns, depth, panels.b);
      if constexpr (kFetches<Way>) {
        const bool last = next >= in.depth;
        const FarRows far(last ? turned_at(0, whole.columns) : turned_at(next, 0),
                          last ? in.next_columns : whole.columns,
                          std::min(depth_block, last ? in.depth : in.depth - next));
        multiply_block(way, part, panels, depth, target, far);
      } else {
        multiply_block(way, part, panels, depth, target);
      }
    }
    target.base = whole.c;
    target.base_stride = whole.c_stride;
    target.bias = nullptr;
  }
}

/// A narrow result: summed up wide, block of rows by block of rows, then rounded.
template <class Way, class T, class C, class W = Wide<T>>
HWY_ATTR void multiply_narrow(const Way& way, const GemmOperands<T>& in, const Panels<W>& panels,
                              const TileTarget<W, C>& whole) {
  const hn::ScalableTag<W> d;
  const int64_t row_block = balanced(whole.rows, kSumRows, kTileRows);
  for (int64_t row = 0; row < whole.rows; row += row_block) {
    TileTarget<W, W> part;
    part.c = panels.sums;
    part.c_stride = whole.columns;
    part.rows = std::min(row_block, whole.rows - row);
    part.columns = whole.columns;
    GemmOperands<T> rows = in;
    rows.a.data += row * in.a.row_stride;
    multiply_columns<Way, T, W>(way, rows, panels, part);
    for (int64_t r = 0; r < part.rows; ++r) {
      const W* sums = panels.sums + r * part.c_stride;
      const C* base = whole.base ? whole.base + (row + r) * whole.base_stride : nullptr;
      C* out = whole.c + (row + r) * whole.c_stride;
      for (int64_t c = 0; c < whole.columns; c += lanes_of(d)) {
        const int64_t left = whole.columns - c;
        auto value = load_part(d, sums + c, left);
        if (whole.bias) value = hn::Add(load_part(d, whole.bias + c, left), value);
        if (base) value = hn::Add(load_part(d, base + c, left), value);
        store_part(d, value, out + c, left);
      }
    }
  }
}

/// Columns of B that are packed at a time.
template <class Way, class T, class C>
constexpr int64_t block_columns(const Way&, const GemmCall<T, C>&, int64_t) {
  return kColumnBlock<Wide<T>>;
}
/// Matrix tiles turn rows of A once per block of columns, so they have as many as fit; where they
/// read rows as they lie, blocks are small: while one is multiplied the next is fetched.
template <class Tiles, class T, class C>
constexpr int64_t block_columns(const MatrixWay<Tiles>& way, const GemmCall<T, C>& call,
                                int64_t rows) {
  using W = Wide<T>;
  constexpr int64_t kFew = 256;
  const int64_t deep = balanced(call.depth, deepest(way, call.a), kMatrixDepth);
  const auto fit = [&](int64_t words, int64_t most) {
    const int64_t columns = 2 * words / kNumParts<T> / deep / kMatrixColumns * kMatrixColumns;
    return std::min(columns, most);
  };
  if (call.a.column_stride != 1) return fit(kBlockWords<W>, kMostColumns<W>);
  return fit(kBlockWords<W> / 2, rows <= kFew ? kFew : kColumnBlock<W> / 2);
}

/// Columns that are done at a time: a narrow result's sums must fit.
template <class W>
HWY_ATTR inline int64_t column_limit(int64_t limit, int64_t rows, bool sums) {
  if (!sums) return limit;
  const int64_t row_block = balanced(rows, kSumRows, kTileRows);
  const int64_t fit = kNarrowSums / row_block / kTileColumns<W> * kTileColumns<W>;
  return std::min(limit, fit);
}

template <class Way, class T, class C>
constexpr bool kTurns = false;
template <class Tiles>
constexpr bool kTurns<MatrixWay<Tiles>, Bfloat16, Bfloat16> = true;

/// Whether columns of B are read where they lie: it takes turning the result, and saves packing B
/// for few rows. Those, packed, must fit, and the result, of which 64 bytes of a row are written at
/// a time, should be near.
template <class Way, class T, class C>
bool turns(const Way& way, const GemmCall<T, C>& call, int64_t rows, int64_t columns) {
  if constexpr (!kTurns<Way, T, C>) return false;
  constexpr int64_t kNear = int64_t{4} << 20;
  return call.a.column_stride == 1 && call.b.row_stride == 1 && rows <= kFewRows<float> &&
         rows * columns <= kNear &&
         whole_units(rows, kUnit) * call.depth <= 2 * kBlockWords<float> &&
         call.depth <= deepest(way, call.a);
}

/// The part [row_begin, row_end) x [column_begin, column_end) of c.
template <class Way, class T, class C>
HWY_ATTR void gemm_part(const Way& way, const GemmCall<T, C>& call, const GemmPart& part) {
  using W = Wide<T>;
  constexpr bool kNarrow = !std::is_same_v<C, W>;
  const auto [row_begin, row_end, column_begin, column_end] = part;
  const bool sums = kNarrow && call.depth > deepest(way, call.a);
  const Panels<W> panels = thread_panels<W>(kNarrow);
  const int64_t rows = row_end - row_begin, all_columns = column_end - column_begin;
  const bool turned = turns(way, call, rows, all_columns);
  const int64_t limit = turned ? kMostColumns<W> : block_columns(way, call, rows);
  const int64_t column_block =
      balanced(all_columns, column_limit<W>(limit, rows, sums), kTileColumns<W>);
  GemmOperands<T> in{call.a, call.b, call.depth};
  in.a.data += row_begin * call.a.row_stride;
  const C* base = call.accumulate ? call.c : call.base;
  const int64_t base_stride = call.accumulate ? call.c_stride : call.base_stride;
  for (int64_t column = column_begin; column < column_end; column += column_block) {
    TileTarget<W, C> target;
    target.fetched = !kNarrow;
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
    in.b.data = call.b.data + column * call.b.column_stride;
    in.next_columns = std::min(column_block, column_end - column - target.columns);
    if constexpr (kTurns<Way, T, C>) {
      if (turned) {
        multiply_turned(way, in, panels, target);
        continue;
      }
    }
    if (sums) {
      multiply_narrow<Way, T, C>(way, in, panels, target);
    } else {
      multiply_columns<Way, T, C>(way, in, panels, target);
    }
  }
}

/// Apart, because registers in plain C take 8 KiB of stack.
template <class Tiles, class Act>
HWY_ATTR HWY_NOINLINE void with_matrix_tiles(const Act& act) {
  Tiles tiles;
  tiles.begin();
  act(MatrixWay<Tiles>{tiles});
  tiles.end();
}

template <class Tiles, class T, class C>
HWY_ATTR void gemm_matrix(const GemmCall<T, C>& call, const GemmPart& part) {
  with_matrix_tiles<Tiles>([&](const auto& way) HWY_ATTR { gemm_part(way, call, part); });
}

/// Calls act(way) with the way in which operands of T are multiplied.
template <class T, class Act>
HWY_ATTR void with_way([[maybe_unused]] NarrowProducts products, const Act& act) {
  if constexpr (std::is_same_v<T, Bfloat16>) {
    if (products == NarrowProducts::kPlainTiles) return with_matrix_tiles<PlainTiles>(act);
#if HWY_ARCH_X86_64
    // Inside attention oneDNN stands for tiles: its calls are too small to plan for.
    const bool tiles = products == NarrowProducts::kTiles || products == NarrowProducts::kOneDnn;
    if (tiles && tile_access() == TileAccess::kGranted) return with_matrix_tiles<MatrixTiles>(act);
#endif
#ifdef STRAIT_KERNEL_PAIRED
    const bool named = products == NarrowProducts::kPaired || products == NarrowProducts::kWidened;
    if (!named) products = narrow_products();
    if (products == NarrowProducts::kPaired && __builtin_cpu_supports("avx512bf16"))
      return act(PairWay());
#endif
  }
  act(WideWay());
}

template <class T, class C>
HWY_ATTR void gemm_range(const GemmCall<T, C>& call, const GemmPart& part) {
  if constexpr (std::is_same_v<T, float>) {  // not inside attention
    if (call.products == NarrowProducts::kPlainTiles) return gemm_matrix<PlainTiles>(call, part);
#if HWY_ARCH_X86_64
    if (call.products == NarrowProducts::kSplit && tile_access() == TileAccess::kGranted)
      return gemm_matrix<MatrixTiles>(call, part);
#endif
  }
  with_way<T>(call.products, [&](const auto& way) HWY_ATTR { gemm_part(way, call, part); });
}

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
