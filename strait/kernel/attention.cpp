#include "strait/kernel/attention.h"

#include <cmath>

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/attention.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

template <class T>
HWY_ATTR void attention_any(const AttentionCall<T>& call) {
  using W = Wide<T>;
  HWY_ALIGN W scores[kTile * kTile];
  HWY_ALIGN W wide[kSumElements<T>];
  HWY_ALIGN T narrow[kFactorElements<T>];
  RowState<W> state;
  for (int64_t query = 0; query < call.queries; query += kTile) {
    const int64_t rows = std::min(kTile, call.queries - query);
    const int64_t keys = call.first + query + rows;
    const int64_t begin = first_key(call, query, rows);
    T* out = call.out + query * call.out_stride;
    const Sums<T> sums = sums_in(out, call.out_stride, wide, kMostNarrowHeadWidth);
    for (int64_t key = begin; key < keys; key += kTile) {
      const AttentionTile tile{query, rows, key, std::min(kTile, keys - key)};
      tile_scores(call, tile, scores);
      state.begun = key != begin;
      softmax_tile(call, tile, scores, state, sums);
      gemm_range<T, W>({.rows = rows,
                        .columns = call.head_width,
                        .depth = tile.columns,
                        .a = {factors<T>(scores, rows, tile.columns, narrow), kTile, 1},
                        .b = {call.v + key * call.kv_stride, call.kv_stride, 1},
                        .c = sums.data,
                        .c_stride = sums.stride,
                        .accumulate = key != begin,
                        .products = call.products});
    }
    for (int64_t row = 0; row < rows; ++row) {
      scale_row(sums.data + row * sums.stride, call.head_width, W{1} / state.sum[row]);
      if (call.log_sum_exp)
        call.log_sum_exp[query + row] = state.maximum[row] + std::log(state.sum[row]);
    }
    settle(sums, rows, call.head_width, out, call.out_stride);
  }
}
STRAIT_KERNEL_TARGET(attention, AttentionCall)

template <class T>
HWY_ATTR void query_deltas(const AttentionBackwardCall<T>& call) {
  const AttentionCall<T>& forward = call.forward;
  for (int64_t row = 0; row < forward.queries; ++row) {
    call.delta[row] = dot(call.out_gradient + row * call.out_gradient_stride,
                          forward.out + row * forward.out_stride, forward.head_width);
  }
}

/// Head number `member` of the group.
template <class T>
inline AttentionBackwardCall<T> member_of(AttentionBackwardCall<T> call, int64_t member) {
  const int64_t columns = member * call.forward.head_width, rows = member * call.forward.queries;
  call.forward.q += columns;
  call.forward.out += columns;
  call.forward.log_sum_exp += rows;
  call.forward.head += static_cast<uint64_t>(member);
  call.out_gradient += columns;
  call.dq += columns;
  call.delta += rows;
  if (call.dq_sum) call.dq_sum += rows * call.forward.head_width;
  return call;
}

/// Adds what the queries of one head say about the keys [key, key + columns), whose gradients are
/// in `sums`.
template <class T>
HWY_ATTR void add_key_tile(const AttentionBackwardCall<T>& call, int64_t key, int64_t columns,
                           BackwardTiles<T>& tiles, TileSums<T>& sums) {
  const AttentionCall<T>& forward = call.forward;
  const int64_t width = forward.head_width;
  sums.dq = sums_in(call.dq, call.gradient_stride, call.dq_sum, width);
  for (int64_t query = key; query < forward.queries; query += kTile) {
    const int64_t rows = std::min(kTile, forward.queries - query);
    if (first_key(forward, query, rows) > key) continue;
    const AttentionTile tile{query, rows, key, columns};
    const T* out_gradient = call.out_gradient + query * call.out_gradient_stride;
    tile_scores(forward, tile, tiles.probabilities);
    row_products<T>(forward, tile, {out_gradient, call.out_gradient_stride, 1},
                    {forward.v + key * forward.kv_stride, forward.kv_stride, 1}, tiles.gradients);
    score_gradients(forward, tile, call.delta + query, tiles.probabilities, tiles.gradients);
    sums.dq_begun = key != first_key(forward, query, rows);
    add_tile_gradients(
        call, tile, factors<T>(tiles.probabilities, rows, columns, tiles.narrow),
        factors<T>(tiles.gradients, rows, columns, tiles.narrow + kFactorElements<T>), sums);
    sums.begun = true;
  }
  settle<T>({sums.dq.data + key * sums.dq.stride, sums.dq.stride}, columns, width,
            call.dq + key * call.gradient_stride, call.gradient_stride);
}

/// Keys outside, so that their gradients are summed up in one place; a query's last tile is its
/// diagonal.
template <class T>
HWY_ATTR void attention_backward_any(const AttentionBackwardCall<T>& call) {
  BackwardTiles<T> tiles;
  HWY_ALIGN Wide<T> wide[2 * kSumElements<T>];
  const int64_t queries = call.forward.queries, width = call.forward.head_width;
  for (int64_t member = 0; member < call.group; ++member) query_deltas(member_of(call, member));
  for (int64_t key = 0; key < queries; key += kTile) {
    const int64_t columns = std::min(kTile, queries - key);
    T *dk = call.dk + key * call.gradient_stride, *dv = call.dv + key * call.gradient_stride;
    TileSums<T> sums;
    sums.dk = sums_in(dk, call.gradient_stride, wide, kMostNarrowHeadWidth);
    sums.dv = sums_in(dv, call.gradient_stride, wide + kSumElements<T>, kMostNarrowHeadWidth);
    for (int64_t member = 0; member < call.group; ++member)
      add_key_tile(member_of(call, member), key, columns, tiles, sums);
    settle(sums.dk, columns, width, dk, call.gradient_stride);
    settle(sums.dv, columns, width, dv, call.gradient_stride);
  }
}
STRAIT_KERNEL_TARGET(attention_backward, AttentionBackwardCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(attention, AttentionCall)
STRAIT_KERNEL_DISPATCH(attention_backward, AttentionBackwardCall)

}  // namespace strait::kernel
#endif
