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

/// Divides by the sums of the probabilities.
template <class T>
HWY_ATTR void finish_tile(const AttentionCall<T>& call, const QueryTile<T>& tile) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    const Wide<T> sum = tile.state.sum[row];
    scale_row(tile.sums.data + row * tile.sums.stride, call.head_width, Wide<T>{1} / sum);
    if (call.log_sum_exp)
      call.log_sum_exp[tile.query + row] = tile.state.maximum[row] + std::log(sum);
  }
  settle(tile.sums, tile.rows, call.head_width, call.out + tile.query * call.out_stride,
         call.out_stride);
}

template <class T>
HWY_ATTR void attention_any(const AttentionCall<T>& call) {
  const auto sums_of = [&](int64_t query, Wide<T>* wide) HWY_ATTR {
    return sums_in(call.out + query * call.out_stride, call.out_stride, wide, call.head_width);
  };
  const auto last_key = [&](int64_t query, int64_t rows) { return call.first + query + rows; };
  with_way<T>(call.products, [&](const auto& way) HWY_ATTR {
    attend_groups(way, call, 0, last_key, sums_of,
                  [&](const QueryTile<T>& tile) HWY_ATTR { finish_tile(call, tile); });
  });
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
  if (call.forward.out) call.forward.out += columns;
  call.forward.log_sum_exp += rows;
  call.forward.head += static_cast<uint64_t>(member);
  call.out_gradient += columns;
  call.dq += columns;
  call.delta += rows;
  if (call.dq_sum) call.dq_sum += rows * call.forward.head_width;
  return call;
}

/// Adds what the queries of one head say about the packed keys [key, key + columns), whose
/// gradients are in `sums`.
template <class Way, class T>
HWY_ATTR void add_key_tile(const Way& way, const AttentionBackwardCall<T>& call, int64_t key,
                           int64_t columns, const AttentionPanels<Wide<T>>& panels,
                           BackwardTiles<T>& tiles, TileSums<T>& sums) {
  const AttentionCall<T>& forward = call.forward;
  const int64_t width = forward.head_width;
  sums.dq = sums_in(call.dq, call.gradient_stride, call.dq_sum, width);
  for (int64_t query = key; query < forward.queries; query += kTile) {
    const int64_t rows = std::min(kTile, forward.queries - query);
    if (first_key(forward, query, rows) > key) continue;
    const AttentionTile tile{query, rows, key, columns};
    tile_scores<kOwnRows<T>>(way, forward, tile, panels, tiles.probabilities);
    row_products<kOwnRows<T>>(way, forward, tile,
                              rows_at(call.out_gradient, query, call.out_gradient_stride),
                              panels.values, panels, tiles.gradients);
    score_gradients(forward, tile, call.delta + query, tiles.probabilities, tiles.gradients);
    sums.dq_begun = key != first_key(forward, query, rows);
    add_tile_gradients(
        way, call, tile, factors<T>(tiles.probabilities, rows, columns, tiles.narrow),
        factors<T>(tiles.gradients, rows, columns, tiles.narrow + kFactorElements<T>), panels,
        sums);
    sums.begun = true;
  }
  settle<T>({sums.dq.data + key * sums.dq.stride, sums.dq.stride}, columns, width,
            call.dq + key * call.gradient_stride, call.gradient_stride);
}

/// Keys outside, so that their gradients are summed up in one place; a query's last tile is its
/// diagonal.
template <class Way, class T>
HWY_ATTR void attend_backward(const Way& way, const AttentionBackwardCall<T>& call) {
  BackwardTiles<T> tiles;
  const int64_t queries = call.forward.queries, width = call.forward.head_width;
  const AttentionPanels<Wide<T>> panels = attention_panels<Wide<T>>(width);
  for (int64_t key = 0; key < queries; key += kTile) {
    const int64_t columns = std::min(kTile, queries - key);
    T *dk = call.dk + key * call.gradient_stride, *dv = call.dv + key * call.gradient_stride;
    TileSums<T> sums;
    sums.dk = sums_in(dk, call.gradient_stride, panels.sums, width);
    sums.dv = sums_in(dv, call.gradient_stride, panels.sums + panels.tile, width);
    pack_keys(way, call.forward, key, columns, panels);
    for (int64_t member = 0; member < call.group; ++member)
      add_key_tile(way, member_of(call, member), key, columns, panels, tiles, sums);
    settle(sums.dk, columns, width, dk, call.gradient_stride);
    settle(sums.dv, columns, width, dv, call.gradient_stride);
  }
}
template <class T>
HWY_ATTR void attention_backward_any(const AttentionBackwardCall<T>& call) {
  for (int64_t member = 0; call.forward.out && member < call.group; ++member)
    query_deltas(member_of(call, member));
  with_way<T>(call.forward.products, [&](const auto& way) HWY_ATTR { attend_backward(way, call); });
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
