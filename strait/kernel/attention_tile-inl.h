// Tiles of queries x keys, which whole and partial attention have in common. Included once per
// target by foreach_target.h.
#if defined(STRAIT_KERNEL_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STRAIT_KERNEL_ATTENTION_TILE_INL_H_
#undef STRAIT_KERNEL_ATTENTION_TILE_INL_H_
#else
#define STRAIT_KERNEL_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "hwy/highway.h"
// After highway.h.
#include "hwy/contrib/math/math-inl.h"
#include "strait/kernel/activation-inl.h"
#include "strait/kernel/attention.h"
#include "strait/kernel/attention_panels-inl.h"
#include "strait/kernel/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

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

/// target[rows, columns] = rows . keys^T over head_width, of keys or values that are packed.
template <RowsOfA kRows, class Way, class T>
HWY_ATTR void row_products(const Way& way, const AttentionCall<T>& call, const AttentionTile& tile,
                           const MatrixView<T>& rows, const Wide<T>* keys,
                           const AttentionPanels<Wide<T>>& panels, Wide<T>* target,
                           Wide<T>* packed_rows = nullptr) {
  const GemmCall<T, Wide<T>> product{.rows = tile.rows,
                                     .columns = tile.columns,
                                     .depth = call.head_width,
                                     .a = rows,
                                     .c = target,
                                     .c_stride = kTile};
  multiply_tiles<kRows>(way, product, keys, panels, packed_rows);
}

template <class T>
inline MatrixView<T> rows_at(const T* first, int64_t row, int64_t stride) {
  return {first + row * stride, stride, 1};
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

/// Products of queries and packed keys, times tile_scale the scores.
template <RowsOfA kRows, class Way, class T>
HWY_ATTR void tile_scores(const Way& way, const AttentionCall<T>& call, const AttentionTile& tile,
                          const AttentionPanels<Wide<T>>& panels, Wide<T>* scores,
                          Wide<T>* packed_queries = nullptr) {
  row_products<kRows>(way, call, tile, rows_at(call.q, tile.query, call.q_stride), panels.keys,
                      panels, scores, packed_queries);
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

/// Of factors that are rounded to bf16: one element where nothing is needed.
template <class T>
constexpr int64_t kFactorElements = std::is_same_v<T, Wide<T>> ? 1 : kTile* kTile;

/// A tile of queries: which keys they attend to, in rows of k, and where their results go.
template <class T>
struct QueryTile {
  int64_t query = 0, rows = 0, begin = 0, end = 0;
  Sums<T> sums;
  RowState<Wide<T>> state;
  bool sees(int64_t key) const { return begin <= key && key < end; }
};

/// Results of up to kTileGroup tiles, not yet divided by RowState::sum. Each tile of keys is packed
/// once for all of them.
template <class Way, class T>
HWY_ATTR void attend_tiles(const Way& way, const AttentionCall<T>& call, int64_t key_first,
                           const AttentionPanels<Wide<T>>& panels, std::span<QueryTile<T>> group) {
  using W = Wide<T>;
  HWY_ALIGN W scores[kTile * kTile];
  HWY_ALIGN T narrow[kFactorElements<T>];
  const int64_t width = call.head_width, stride = call.kv_stride;
  const auto queries_of = [&](const QueryTile<T>& tile) {
    return panels.queries + (&tile - group.data()) * panels.tile;
  };
  int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;
  for (const QueryTile<T>& tile : group) {
    if (tile.begin >= tile.end) continue;
    begin = std::min(begin, tile.begin);
    end = std::max(end, tile.end);
    pack_first(way, rows_at(call.q, tile.query, call.q_stride), tile.rows, width, queries_of(tile));
  }
  for (int64_t key = begin; key < end; key += kTile) {
    const int64_t columns = std::min(kTile, end - key);
    pack_second(way, MatrixView<T>{call.k + key * stride, 1, stride}, columns, width, panels.keys);
    pack_second(way, rows_at(call.v, key, stride), width, columns, panels.values);
    for (QueryTile<T>& tile : group) {
      if (!tile.sees(key)) continue;
      const AttentionTile at{tile.query, tile.rows, key, columns, key_first};
      tile_scores<RowsOfA::kPrepared>(way, call, at, panels, scores, queries_of(tile));
      tile.state.begun = key != tile.begin;
      softmax_tile(call, at, scores, tile.state, tile.sums);
      const GemmCall<T, W> product{.rows = tile.rows,
                                   .columns = width,
                                   .depth = columns,
                                   .a = {factors<T>(scores, tile.rows, columns, narrow), kTile, 1},
                                   .c = tile.sums.data,
                                   .c_stride = tile.sums.stride,
                                   .accumulate = tile.state.begun};
      multiply_tiles<kOwnRows<T>>(way, product, panels.values, panels);
    }
  }
}

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

/// All queries, group by group: `end_of` gives the end of the keys that a tile may attend to, in
/// rows of k, `sums_of` where its results are summed up, and `finish` takes each one that is
/// complete.
template <class Way, class T, class EndOf, class SumsOf, class Finish>
HWY_ATTR void attend_groups(const Way& way, const AttentionCall<T>& call, int64_t key_first,
                            const EndOf& end_of, const SumsOf& sums_of, const Finish& finish) {
  std::array<QueryTile<T>, kTileGroup> tiles;
  const AttentionPanels<Wide<T>> panels = attention_panels<Wide<T>>(call.head_width);
  for (int64_t query = 0; query < call.queries;) {
    size_t count = 0;
    for (; count < tiles.size() && query < call.queries; ++count, query += kTile) {
      const int64_t rows = std::min(kTile, call.queries - query);
      QueryTile<T>& tile = tiles[count];
      tile.query = query;
      tile.rows = rows;
      tile.begin = first_key(call, query, rows, key_first);
      tile.end = end_of(query, rows);
      tile.sums = sums_of(query, panels.sums + static_cast<int64_t>(count) * panels.tile);
    }
    const std::span<QueryTile<T>> group(tiles.data(), count);
    attend_tiles(way, call, key_first, panels, group);
    for (const QueryTile<T>& tile : group) finish(tile);
  }
}

/// Where the gradients of one key tile and of all queries are summed up.
template <class T>
struct TileSums {
  Sums<T> dk, dv, dq;
  bool begun = false;     // dk and dv hold something
  bool dq_begun = false;  // dq does
};

/// Keys and values [key, key + columns) for all products of a backward.
template <class Way, class T>
HWY_ATTR void pack_keys(const Way& way, const AttentionCall<T>& call, int64_t key, int64_t columns,
                        const AttentionPanels<Wide<T>>& panels) {
  const int64_t stride = call.kv_stride, width = call.head_width;
  const T *k = call.k + key * stride, *v = call.v + key * stride;
  pack_second(way, MatrixView<T>{k, 1, stride}, columns, width, panels.keys);
  pack_second(way, MatrixView<T>{v, 1, stride}, columns, width, panels.values);
  pack_second(way, MatrixView<T>{k, stride, 1}, width, columns, panels.keys_by_column);
}

/// The products of one tile: dV += P^T dO, dK += dS^T Q, dQ += dS K, of packed keys.
template <class Way, class T>
HWY_ATTR void add_tile_gradients(const Way& way, const AttentionBackwardCall<T>& call,
                                 const AttentionTile& tile, const T* probabilities,
                                 const T* gradients, const AttentionPanels<Wide<T>>& panels,
                                 const TileSums<T>& sums) {
  const AttentionCall<T>& forward = call.forward;
  const int64_t width = forward.head_width;
  const auto pack = [&](const MatrixView<T>& rows)
                        HWY_ATTR { pack_second(way, rows, width, tile.rows, panels.queries); };
  GemmCall<T, Wide<T>> product{.rows = tile.columns,
                               .columns = width,
                               .depth = tile.rows,
                               .a = {probabilities, 1, kTile},
                               .c = sums.dv.data,
                               .c_stride = sums.dv.stride,
                               .accumulate = sums.begun};
  pack(rows_at(call.out_gradient, tile.query, call.out_gradient_stride));
  multiply_tiles<kOwnRows<T>>(way, product, panels.queries, panels);
  product.a.data = gradients;
  product.c = sums.dk.data;
  pack(rows_at(forward.q, tile.query, forward.q_stride));
  multiply_tiles<kOwnRows<T>>(way, product, panels.queries, panels);
  product.rows = tile.rows;
  product.depth = tile.columns;
  product.a = {gradients, kTile, 1};
  product.c = sums.dq.data + tile.query * sums.dq.stride;
  product.c_stride = sums.dq.stride;
  product.accumulate = sums.dq_begun;
  multiply_tiles<kOwnRows<T>>(way, product, panels.keys_by_column, panels);
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
