// Tiles of queries x keys, which whole and partial attention have in common. Included once per
// target by foreach_target.h.
#if defined(STRAIT_KERNEL_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_ATTENTION_TILE_INL_H_
#undef STRAIT_KERNEL_ATTENTION_TILE_INL_H_
#else
#define STRAIT_KERNEL_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
// After highway.h.
#include "hwy/contrib/math/math-inl.h"
#include "strait/kernel/activation-inl.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/gemm_block-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

constexpr int64_t kTile = 64;  // queries and keys per tile

/// One tile of queries [query, query + rows) x keys [key, key + columns), counted in rows of q and
/// of k. The first row of k stands at position `key_first`.
struct AttentionTile {
  int64_t query = 0, rows = 0, key = 0, columns = 0, key_first = 0;
  int64_t position() const { return key_first + key; }  // of the first key
};

template <class T>
inline Wide<T> score_scale(const AttentionCall<T>& call) {
  if (call.scale > 0.0) return static_cast<Wide<T>>(call.scale);
  return Wide<T>{1} / std::sqrt(static_cast<Wide<T>>(call.head_width));
}

/// What scores in a tile are still to be multiplied by: capped ones are scaled already.
template <class T>
inline Wide<T> tile_scale(const AttentionCall<T>& call) {
  return call.cap > 0.0 ? Wide<T>{1} : score_scale(call);
}

/// First key of a query's window.
template <class T>
inline int64_t window_start(const AttentionCall<T>& call, int64_t query) {
  return call.window > 0 ? call.first + query + 1 - call.window : 0;
}

/// Keys of the tile that row `row` attends: [begin, end) relative to the tile, possibly empty.
struct KeyRange {
  int64_t begin = 0, end = 0;
};
template <class T>
inline KeyRange key_range(const AttentionCall<T>& call, const AttentionTile& tile, int64_t row) {
  const int64_t query = tile.query + row;
  const int64_t start =
      std::max<int64_t>(call.starts ? call.starts[query] : 0, window_start(call, query));
  const int64_t begin = std::clamp<int64_t>(start - tile.position(), 0, tile.columns);
  const int64_t end =
      std::clamp<int64_t>(call.first + query + 1 - tile.position(), 0, tile.columns);
  return {std::min(begin, end), end};
}

/// First key tile that any query of the tile attends, in rows of k.
template <class T>
inline int64_t first_key(const AttentionCall<T>& call, int64_t query, int64_t rows,
                         int64_t key_first = 0) {
  int64_t start = std::max<int64_t>(0, window_start(call, query));
  if (call.starts)
    start = std::max<int64_t>(start,
                              *std::min_element(call.starts + query, call.starts + query + rows));
  return std::max<int64_t>(0, start - key_first) / kTile * kTile;
}

/// Where sums of `width` columns over several products are kept: in the target where its type can,
/// else in `wide` (rows of `wide_stride`).
template <class T>
struct Sums {
  Wide<T>* data = nullptr;
  int64_t stride = 0;
};
template <class T>
inline Sums<T> sums_in(T* target, int64_t stride, [[maybe_unused]] Wide<T>* wide,
                       [[maybe_unused]] int64_t wide_stride) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    return {target, stride};
  } else {
    return {wide, wide_stride};
  }
}

/// Rounds finished sums into their target, where they are not there already.
template <class T>
HWY_ATTR void settle([[maybe_unused]] Sums<T> sums, [[maybe_unused]] int64_t rows,
                     [[maybe_unused]] int64_t width, [[maybe_unused]] T* target,
                     [[maybe_unused]] int64_t stride) {
  if constexpr (!std::is_same_v<T, Wide<T>>) {
    const hn::ScalableTag<Wide<T>> d;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t c = 0; c < width; c += lanes_of(d)) {
        store_part(d, load_part(d, sums.data + row * sums.stride + c, width - c),
                   target + row * stride + c, width - c);
      }
    }
  }
}

/// A tile of factors in the type that products take: the tile itself, or `narrow` filled with it
/// rounded.
template <class T>
HWY_ATTR const T* factors(const Wide<T>* tile, [[maybe_unused]] int64_t rows,
                          [[maybe_unused]] int64_t columns, [[maybe_unused]] T* narrow) {
  if constexpr (std::is_same_v<T, Wide<T>>) {
    return tile;
  } else {
    settle<T>({const_cast<Wide<T>*>(tile), kTile}, rows, columns, narrow, kTile);
    return narrow;
  }
}

/// target[rows, columns] = left rows . right rows^T over head_width.
template <class T>
HWY_ATTR void row_products(const AttentionCall<T>& call, const AttentionTile& tile,
                           MatrixView<T> left, MatrixView<T> right, Wide<T>* target) {
  gemm_range<T, Wide<T>>({.rows = tile.rows,
                          .columns = tile.columns,
                          .depth = call.head_width,
                          .a = left,
                          .b = {right.data, right.column_stride, right.row_stride},
                          .c = target,
                          .c_stride = kTile,
                          .products = call.products});
}

/// Scales and caps all scores of a tile.
template <class T>
HWY_ATTR void cap_scores(const AttentionCall<T>& call, const AttentionTile& tile, Wide<T>* scores) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const W cap = static_cast<W>(call.cap);
  const auto scale = hn::Set(d, score_scale(call));
  for (int64_t row = 0; row < tile.rows; ++row) {
    W* values = scores + row * kTile;
    for (int64_t i = 0; i < tile.columns; i += lanes_of(d)) {
      const int64_t left = tile.columns - i;
      const auto scaled = hn::Mul(load_part(d, values + i, left), scale);
      store_part(d, soft_cap(d, scaled, cap), values + i, left);
    }
  }
}

/// Products of queries and keys, times tile_scale the scores.
template <class T>
HWY_ATTR void tile_scores(const AttentionCall<T>& call, const AttentionTile& tile,
                          Wide<T>* scores) {
  row_products<T>(call, tile, {call.q + tile.query * call.q_stride, call.q_stride, 1},
                  {call.k + tile.key * call.kv_stride, call.kv_stride, 1}, scores);
  if (call.cap > 0.0) cap_scores(call, tile, scores);
}

/// Multiplies row `row` of the tile by the dropout mask.
template <class T>
HWY_ATTR void drop_row(const AttentionCall<T>& call, const AttentionTile& tile, int64_t row,
                       Wide<T>* values) {
  const uint64_t position = static_cast<uint64_t>(call.first + tile.query + row);
  const uint64_t element =
      (call.head << 40) + (position << 20) + static_cast<uint64_t>(tile.position());
  const Wide<T> scale = static_cast<Wide<T>>(call.mask->scale);
  for (int64_t column = 0; column < tile.columns; ++column) {
    values[column] *=
        call.mask->keeps(element + static_cast<uint64_t>(column)) ? scale : Wide<T>{0};
  }
}

/// Running maximum and sum of a query row (online softmax).
template <class T>
struct RowState {
  T maximum[kTile];
  T sum[kTile];
  bool begun = false;  // whether an earlier key tile is in it
};

template <class T>
HWY_ATTR T range_maximum(const T* row, KeyRange range) {
  const hn::ScalableTag<T> d;
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  auto highest = hn::Set(d, kLowest);
  for (int64_t i = range.begin; i < range.end; i += lanes_of(d)) {
    const int64_t left = range.end - i;
    highest = hn::Max(highest, keep_first(d, load_part(d, row + i, left), left, kLowest));
  }
  return hn::GetLane(hn::MaxOfLanes(d, highest));
}

/// row[range] = exp(scale row - shift), 0 elsewhere in the tile; returns the sum.
template <class T>
HWY_ATTR T exponentiate(T* row, KeyRange range, int64_t columns, T scale, T shift) {
  const hn::ScalableTag<T> d;
  const auto factor = hn::Set(d, scale), offset = hn::Set(d, shift);
  auto sum = hn::Zero(d);
  for (int64_t i = range.begin; i < range.end; i += lanes_of(d)) {
    const int64_t left = range.end - i;
    const auto exponent = hn::MulSub(load_part(d, row + i, left), factor, offset);
    const auto value = keep_first(d, hn::Exp(d, exponent), left, T{0});
    store_part(d, value, row + i, left);
    sum = hn::Add(sum, value);
  }
  std::fill(row, row + range.begin, T{0});
  std::fill(row + range.end, row + columns, T{0});
  return sum_of(d, sum);
}

template <class T>
HWY_ATTR void scale_row(T* row, int64_t count, T factor) {
  for (int64_t i = 0; i < count; ++i) row[i] *= factor;
}

/// Turns scores into unnormalised probabilities; rescales what earlier key tiles left in `sums`.
template <class T>
HWY_ATTR void softmax_tile(const AttentionCall<T>& call, const AttentionTile& tile, Wide<T>* scores,
                           RowState<Wide<T>>& state, Sums<T> sums) {
  const bool first = !state.begun;
  using W = Wide<T>;
  const W scale = tile_scale(call);
  for (int64_t row = 0; row < tile.rows; ++row) {
    W* values = scores + row * kTile;
    const KeyRange range = key_range(call, tile, row);
    const W before = first ? std::numeric_limits<W>::lowest() : state.maximum[row];
    const W maximum =
        range.begin < range.end ? std::max(before, scale * range_maximum(values, range)) : before;
    const W sum = exponentiate(values, range, tile.columns, scale, maximum);
    const W correction = first ? W{0} : std::exp(before - maximum);
    state.maximum[row] = maximum;
    state.sum[row] = first ? sum : state.sum[row] * correction + sum;
    if (!first && correction != W{1}) {
      scale_row(sums.data + row * sums.stride, call.head_width, correction);
    }
    if (call.mask && call.mask->active()) drop_row(call, tile, row, values);
  }
}

/// Rows that bf16 cannot sum up in place: fp32 beside it. One element where nothing is needed.
template <class T>
constexpr int64_t kSumElements = std::is_same_v<T, Wide<T>> ? 1 : kTile* kMostNarrowHeadWidth;
template <class T>
constexpr int64_t kFactorElements = std::is_same_v<T, Wide<T>> ? 1 : kTile* kTile;

template <class T>
HWY_ATTR Wide<T> dot(const T* a, const T* b, int64_t count) {
  const hn::ScalableTag<Wide<T>> d;
  auto sum = hn::Zero(d);
  for (int64_t i = 0; i < count; i += lanes_of(d)) {
    sum = hn::MulAdd(load_part(d, a + i, count - i), load_part(d, b + i, count - i), sum);
  }
  return sum_of(d, sum);
}

/// Multiplies the gradients of a row of capped scores by the slope of the cap.
template <class W>
HWY_ATTR void cap_slopes(const W* scores, int64_t count, double cap, W* gradients) {
  const hn::ScalableTag<W> d;
  for (int64_t i = 0; i < count; i += lanes_of(d)) {
    const int64_t left = count - i;
    const auto slope = soft_cap_slope(d, load_part(d, scores + i, left), static_cast<W>(cap));
    store_part(d, hn::Mul(load_part(d, gradients + i, left), slope), gradients + i, left);
  }
}

/// dS = P (mask dP - delta) scale; leaves mask P in `probabilities` and dS in `gradients`.
template <class T>
HWY_ATTR void score_gradients(const AttentionCall<T>& call, const AttentionTile& tile,
                              const Wide<T>* delta, Wide<T>* probabilities, Wide<T>* gradients) {
  using W = Wide<T>;
  const hn::ScalableTag<W> d;
  const W scale = score_scale(call);
  const bool drops = call.mask && call.mask->active();
  W capped[kTile];
  for (int64_t row = 0; row < tile.rows; ++row) {
    W* p = probabilities + row * kTile;
    W* g = gradients + row * kTile;
    if (call.cap > 0.0) std::copy_n(p, tile.columns, capped);
    exponentiate(p, key_range(call, tile, row), tile.columns, tile_scale(call),
                 call.log_sum_exp[tile.query + row]);
    if (drops) drop_row(call, tile, row, g);
    const auto shift = hn::Set(d, delta[row]), factor = hn::Set(d, scale);
    for (int64_t i = 0; i < tile.columns; i += lanes_of(d)) {
      const int64_t left = tile.columns - i;
      const auto centered = hn::Sub(load_part(d, g + i, left), shift);
      store_part(d, hn::Mul(hn::Mul(load_part(d, p + i, left), centered), factor), g + i, left);
    }
    if (call.cap > 0.0) cap_slopes(capped, tile.columns, call.cap, g);
    if (drops) drop_row(call, tile, row, p);
  }
}

/// Where the gradients of one key tile and of all queries are summed up.
template <class T>
struct TileSums {
  Sums<T> dk, dv, dq;
  bool begun = false;     // dk and dv hold something
  bool dq_begun = false;  // dq does
};

/// The products of one tile: dV += P^T dO, dK += dS^T Q, dQ += dS K.
template <class T>
HWY_ATTR void add_tile_gradients(const AttentionBackwardCall<T>& call, const AttentionTile& tile,
                                 const T* probabilities, const T* gradients,
                                 const TileSums<T>& sums) {
  const AttentionCall<T>& forward = call.forward;
  const int64_t width = forward.head_width;
  GemmCall<T, Wide<T>> product{
      .rows = tile.columns,
      .columns = width,
      .depth = tile.rows,
      .a = {probabilities, 1, kTile},
      .b = {call.out_gradient + tile.query * call.out_gradient_stride, call.out_gradient_stride, 1},
      .c = sums.dv.data,
      .c_stride = sums.dv.stride,
      .accumulate = sums.begun,
      .products = forward.products};
  gemm_range(product);
  product.a.data = gradients;
  product.b = {forward.q + tile.query * forward.q_stride, forward.q_stride, 1};
  product.c = sums.dk.data;
  gemm_range(product);
  product.rows = tile.rows;
  product.depth = tile.columns;
  product.a = {gradients, kTile, 1};
  product.b = {forward.k + tile.key * forward.kv_stride, forward.kv_stride, 1};
  product.c = sums.dq.data + tile.query * sums.dq.stride;
  product.c_stride = sums.dq.stride;
  product.accumulate = sums.dq_begun;
  gemm_range(product);
}

/// Tiles of scores, and the same rounded where bf16 multiplies them.
template <class T>
struct BackwardTiles {
  HWY_ALIGN Wide<T> probabilities[kTile * kTile];
  HWY_ALIGN Wide<T> gradients[kTile * kTile];
  HWY_ALIGN T narrow[2 * kFactorElements<T>];
};

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
