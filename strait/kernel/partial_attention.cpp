#include "strait/kernel/partial_attention.h"

#include <cmath>
#include <limits>

#include "strait/kernel/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "strait/kernel/partial_attention.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "strait/kernel/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strait::kernel::HWY_NAMESPACE {

/// End of the keys that a tile of queries may attend, in rows of k.
template <class Call>
inline int64_t last_key(const Call& call, int64_t query, int64_t rows) {
  return std::clamp<int64_t>(call.rows.first + query + rows - call.key_first, 0, call.keys);
}

/// Divides by the sums of the probabilities. A row without any becomes 0 and minus infinity.
template <class T>
HWY_ATTR void normalise(const PartialAttentionCall<T>& call, const QueryTile<T>& tile) {
  using W = Wide<T>;
  for (int64_t row = 0; row < tile.rows; ++row) {
    W* out = tile.sums.data + row * tile.sums.stride;
    const bool any = tile.begin < tile.end && tile.state.sum[row] > W{0};
    if (any) {
      scale_row(out, call.rows.head_width, W{1} / tile.state.sum[row]);
    } else {
      std::fill_n(out, call.rows.head_width, W{0});
    }
    call.rows.log_sum_exp[tile.query + row] =
        any ? tile.state.maximum[row] + std::log(tile.state.sum[row])
            : -std::numeric_limits<W>::infinity();
  }
}

template <class T>
HWY_ATTR void partial_attention_any(const PartialAttentionCall<T>& call) {
  const auto sums_of = [&](int64_t query, Wide<T>*) {
    return Sums<T>{call.out + query * call.out_stride, call.out_stride};
  };
  const auto end_of = [&](int64_t query, int64_t rows) { return last_key(call, query, rows); };
  with_way<T>(call.rows.products, [&](const auto& way) HWY_ATTR {
    attend_groups(way, call.rows, call.key_first, end_of, sums_of,
                  [&](const QueryTile<T>& tile) HWY_ATTR { normalise(call, tile); });
  });
}
STRAIT_KERNEL_TARGET(partial_attention, PartialAttentionCall)

template <class W>
HWY_ATTR void merge_rows(const MergeCall<W>& call) {
  const hn::ScalableTag<W> d;
  for (int64_t row = 0; row < call.rows; ++row) {
    const W own = call.log_sum_exp[row], other = call.other_log_sum_exp[row];
    if (other == -std::numeric_limits<W>::infinity()) continue;
    W* out = call.out + row * call.out_stride;
    const W* from = call.other_out + row * call.other_stride;
    if (own == -std::numeric_limits<W>::infinity()) {
      std::copy_n(from, call.width, out);
      call.log_sum_exp[row] = other;
      continue;
    }
    const W small = std::exp(std::min(own, other) - std::max(own, other));  // at most 1
    const W more = W{1} / (W{1} + small), less = small / (W{1} + small);
    const auto keep = hn::Set(d, own >= other ? more : less);
    const auto take = hn::Set(d, own >= other ? less : more);
    for (int64_t i = 0; i < call.width; i += lanes_of(d)) {
      const int64_t left = call.width - i;
      const auto taken = hn::Mul(take, load_part(d, from + i, left));
      store_part(d, hn::MulAdd(keep, load_part(d, out + i, left), taken), out + i, left);
    }
    call.log_sum_exp[row] = std::max(own, other) + std::log1p(small);
  }
}
void merge_attention_f32(const MergeCall<float>& call) { merge_rows(call); }
void merge_attention_f64(const MergeCall<double>& call) { merge_rows(call); }

template <class T>
HWY_ATTR void attention_delta_any(const DeltaCall<T>& call) {
  for (int64_t row = 0; row < call.rows; ++row) {
    call.delta[row] = dot(call.out_gradient + row * call.out_gradient_stride,
                          call.out + row * call.out_stride, call.width);
  }
}
STRAIT_KERNEL_TARGET(attention_delta, DeltaCall)

/// Head number `member` of the group.
template <class T>
inline PartialAttentionBackwardCall<T> member_of(PartialAttentionBackwardCall<T> call,
                                                 int64_t member) {
  const int64_t columns = member * call.rows.head_width, rows = member * call.rows.queries;
  call.rows.q += columns;
  call.rows.log_sum_exp += rows;
  call.rows.head += static_cast<uint64_t>(member);
  call.out_gradient += columns;
  call.delta += rows;
  call.dq += columns;
  return call;
}

/// Adds what the queries of one head say about the packed keys [key, key + columns), and those
/// about them.
template <class Way, class T>
HWY_ATTR void add_key_block(const Way& way, const PartialAttentionBackwardCall<T>& call,
                            int64_t key, int64_t columns, const AttentionPanels<Wide<T>>& panels,
                            BackwardTiles<T>& tiles) {
  const AttentionCall<T>& in = call.rows;
  const int64_t gradients = key * call.kv_gradient_stride;
  const TileSums<T> sums{.dk = {call.dk + gradients, call.kv_gradient_stride},
                         .dv = {call.dv + gradients, call.kv_gradient_stride},
                         .dq = {call.dq, call.dq_stride},
                         .begun = true,
                         .dq_begun = true};
  const AttentionBackwardCall<T> products{.forward = in,
                                          .out_gradient = call.out_gradient,
                                          .out_gradient_stride = call.out_gradient_stride};
  for (int64_t query = 0; query < in.queries; query += kTile) {
    const int64_t rows = std::min(kTile, in.queries - query);
    if (last_key(call, query, rows) <= key) continue;
    if (first_key(in, query, rows, call.key_first) >= key + columns) continue;
    const AttentionTile tile{query, rows, key, columns, call.key_first};
    tile_scores<kOwnRows<T>>(way, in, tile, panels, tiles.probabilities);
    row_products<kOwnRows<T>>(way, in, tile,
                              rows_at(call.out_gradient, query, call.out_gradient_stride),
                              panels.values, panels, tiles.gradients);
    score_gradients(in, tile, call.delta + query, tiles.probabilities, tiles.gradients);
    add_tile_gradients(
        way, products, tile, factors<T>(tiles.probabilities, rows, columns, tiles.narrow),
        factors<T>(tiles.gradients, rows, columns, tiles.narrow + kFactorElements<T>), panels,
        sums);
  }
}

template <class T>
HWY_ATTR void partial_attention_backward_any(const PartialAttentionBackwardCall<T>& call) {
  BackwardTiles<T> tiles;
  const AttentionPanels<Wide<T>> panels = attention_panels<Wide<T>>(call.rows.head_width);
  with_way<T>(call.rows.products, [&](const auto& way) HWY_ATTR {
    for (int64_t key = 0; key < call.keys; key += kTile) {
      const int64_t columns = std::min(kTile, call.keys - key);
      pack_keys(way, call.rows, key, columns, panels);
      for (int64_t member = 0; member < call.group; ++member)
        add_key_block(way, member_of(call, member), key, columns, panels, tiles);
    }
  });
}
STRAIT_KERNEL_TARGET(partial_attention_backward, PartialAttentionBackwardCall)

}  // namespace strait::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strait::kernel {

STRAIT_KERNEL_DISPATCH(partial_attention, PartialAttentionCall)
STRAIT_KERNEL_DISPATCH(attention_delta, DeltaCall)
STRAIT_KERNEL_DISPATCH(partial_attention_backward, PartialAttentionBackwardCall)

HWY_EXPORT(merge_attention_f32);
HWY_EXPORT(merge_attention_f64);
template <>
void merge_attention<float>(const MergeCall<float>& call) {
  HWY_DYNAMIC_DISPATCH(merge_attention_f32)(call);
}
template <>
void merge_attention<double>(const MergeCall<double>& call) {
  HWY_DYNAMIC_DISPATCH(merge_attention_f64)(call);
}

}  // namespace strait::kernel
#endif
