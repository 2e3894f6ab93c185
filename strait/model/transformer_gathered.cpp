// Attention where several ranks share every sequence: this rank's queries against the gathered keys
// of all (Llama 3, Dubey et al. 2024). Every query sees its keys in one pass and in order, so that
// the forward has the bits of one rank.
#include <algorithm>

#include "strait/model/transformer_segments.h"

namespace strait::model {

using enum BlockValue;

template <class T>
void TransformerSegments<T>::pack_keys(const SegmentCall& call,
                                       const sequence::KeyPart& part) const {
  if (has_head_ring(call))
    return run_head_ring(call, [&](const TransformerSegments& block, const SegmentCall& of_heads) {
      block.pack_keys(of_heads, part);
    });
  const int64_t chunk = call.batch->share().chunk();
  const int64_t width = 2 * extent_.kv_width(), stride = extent_.qkv_width();
  const T* from = at(call, kQkv) + extent_.attention_width();
  T* to = at(call, kKeys);
  kernel::parallel_ranges(
      extent(call).rows / part.parts, 64, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          std::copy_n(from + part.own_row(row, chunk) * stride, width, to + row * width);
      });
}

/// Row of gathered keys at which the chunk of a sequence begins that stands at `chunk` of all.
template <class T>
int64_t TransformerSegments<T>::key_row(const SegmentCall& call, int64_t sequence,
                                        int64_t chunk) const {
  const sequence::Share share = call.batch->share();
  const bool mirrored = chunk >= share.members;
  const int64_t owner = mirrored ? 2 * share.members - 1 - chunk : chunk;
  return (owner * call.batch->batch + sequence) * share.tokens + (mirrored ? share.chunk() : 0);
}

template <class T>
void TransformerSegments<T>::attend_gathered(const SegmentCall& call) const {
  order_rows(call, at(call, kGatheredKeys), at(call, kOrderedKeys), 2 * extent_.kv_width());
  const int64_t heads = extent_.heads;
  kernel::parallel_ranges(call.batch->batch * heads, 1, call.settings->threads,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t item = begin; item < end; ++item)
                              attend_gathered_head(call, item / heads, item % heads);
                          });
}

/// The queries of one of the two chunks; keys and values, of which a row has both, are the caller's
/// to give.
template <class T>
kernel::AttentionCall<T> TransformerSegments<T>::chunk_call(const SegmentCall& call,
                                                            int64_t sequence, int64_t head,
                                                            int64_t half) const {
  const sequence::Share share = call.batch->share();
  const int64_t row = half * share.chunk();
  kernel::AttentionCall<T> one = attention_call(call, sequence, head);
  one.queries = share.chunk();
  one.first = share.begin(half);
  one.q += row * one.q_stride;
  one.kv_stride = 2 * extent_.kv_width();
  if (one.out) one.out += row * one.out_stride;
  if (one.log_sum_exp) one.log_sum_exp += row;
  if (one.starts) one.starts += row;
  if (call.batch->row_starts)
    one.starts = call.batch->row_starts + sequence * share.length() + one.first;
  return one;
}

template <class T>
void TransformerSegments<T>::attend_gathered_head(const SegmentCall& call, int64_t sequence,
                                                  int64_t head) const {
  const kernel::DropoutMask mask = site(call, DropoutPlace::kAttention).mask(sequence);
  for (int64_t half = 0; half < 2; ++half) {
    kernel::AttentionCall<T> one = chunk_call(call, sequence, head, half);
    one.k = at(call, kOrderedKeys) + sequence * call.batch->share().length() * one.kv_stride +
            key_column(head);
    one.v = one.k + extent_.kv_width();
    one.mask = &mask;
    kernel::attention(one);
  }
}

/// Sums of gradients begin at zero; key heads are independent of each other.
template <class T>
void TransformerSegments<T>::attend_gathered_input(const SegmentCall& call) const {
  const int threads = call.settings->threads;
  Wide<T>* keys = wide(call, kGatheredKeyGradient);
  kernel::parallel_ranges(
      call.batch->sharers * extent(call).rows * 2 * extent_.kv_width(), 4096, threads,
      [&](int64_t begin, int64_t end) { std::fill(keys + begin, keys + end, Wide<T>{0}); });
  const int64_t kv_heads = extent_.kv_heads, group = extent_.heads / kv_heads;
  kernel::parallel_ranges(
      call.batch->batch * kv_heads, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item)
          for (int64_t head = 0; head < group; ++head)
            attend_gathered_head_input(call, item / kv_heads, item % kv_heads * group + head);
      });
}

/// The wide place where a head's query gradients are summed up.
template <class T>
typename TransformerSegments<T>::QuerySums TransformerSegments<T>::query_sums(
    const SegmentCall& call, int64_t sequence, int64_t head) const {
  const int64_t tokens = call.batch->tokens, width = extent_.head_width;
  if (call[kQuerySum])
    return {wide(call, kQuerySum) + (sequence * extent_.heads + head) * tokens * width, width};
  // Not wider than the gradients themselves.
  T* gradients = at(call, kQkvGradient) + sequence * tokens * extent_.qkv_width() + head * width;
  return {reinterpret_cast<Wide<T>*>(gradients), extent_.qkv_width()};
}

template <class T>
void TransformerSegments<T>::begin_gradients(const SegmentCall& call, int64_t sequence,
                                             int64_t head) const {
  const int64_t tokens = call.batch->tokens, width = extent_.attention_width();
  const QuerySums sums = query_sums(call, sequence, head);
  for (int64_t row = 0; row < tokens; ++row)
    std::fill_n(sums.data + row * sums.stride, extent_.head_width, Wide<T>{0});
  if (!call[kAttention]) return;  // kDelta is there
  const kernel::PartialAttentionBackwardCall<T> all = chunk_gradient(call, sequence, head, 0);
  kernel::attention_delta<T>({tokens, extent_.head_width, all.rows.out, width, all.out_gradient,
                              width,
                              wide(call, kDelta) + (sequence * extent_.heads + head) * tokens});
}

template <class T>
kernel::PartialAttentionBackwardCall<T> TransformerSegments<T>::chunk_gradient(
    const SegmentCall& call, int64_t sequence, int64_t head, int64_t half) const {
  const sequence::Share share = call.batch->share();
  const int64_t row = half * share.chunk(), width = extent_.attention_width();
  const QuerySums sums = query_sums(call, sequence, head);
  kernel::PartialAttentionBackwardCall<T> part{
      .rows = chunk_call(call, sequence, head, half),
      .keys = share.chunk(),
      .out_gradient = at(call, kAttentionGradient) + (sequence * share.tokens + row) * width +
                      head * extent_.head_width,
      .out_gradient_stride = width,
      .delta = wide(call, kDelta) + (sequence * extent_.heads + head) * share.tokens + row,
      .dq = sums.data + row * sums.stride,
      .dq_stride = sums.stride,
      .kv_gradient_stride = 2 * extent_.kv_width()};
  return part;
}

template <class T>
void TransformerSegments<T>::attend_keys_input(kernel::PartialAttentionBackwardCall<T> part,
                                               const T* keys, Wide<T>* gradients) const {
  part.rows.k = keys;
  part.rows.v = keys + extent_.kv_width();
  part.dk = gradients;
  part.dv = gradients + extent_.kv_width();
  kernel::partial_attention_backward(part);
}

/// The queries of each chunk against every chunk of keys that is not behind them.
template <class T>
void TransformerSegments<T>::attend_gathered_head_input(const SegmentCall& call, int64_t sequence,
                                                        int64_t head) const {
  const kernel::DropoutMask mask = site(call, DropoutPlace::kAttention).mask(sequence);
  begin_gradients(call, sequence, head);
  for (int64_t half = 0; half < 2; ++half) {
    kernel::PartialAttentionBackwardCall<T> part = chunk_gradient(call, sequence, head, half);
    part.rows.mask = &mask;
    for (int64_t chunk = 0; chunk * part.keys <= part.rows.first; ++chunk) {
      const int64_t at_key =
          key_row(call, sequence, chunk) * part.rows.kv_stride + key_column(head);
      part.key_first = chunk * part.keys;
      attend_keys_input(part, at(call, kGatheredKeys) + at_key,
                        wide(call, kGatheredKeyGradient) + at_key);
    }
  }
  round_query_gradient(call, sequence, head);
}

/// From where they were summed up, if that is another place.
template <class T>
void TransformerSegments<T>::round_query_gradient(const SegmentCall& call, int64_t sequence,
                                                  int64_t head) const {
  if (!call[kQuerySum]) return;
  const QuerySums sums = query_sums(call, sequence, head);
  const int64_t tokens = call.batch->tokens, width = extent_.head_width;
  T* to = at(call, kQkvGradient) + sequence * tokens * extent_.qkv_width() + head * width;
  for (int64_t row = 0; row < tokens; ++row)
    for (int64_t column = 0; column < width; ++column)
      to[row * extent_.qkv_width() + column] =
          static_cast<T>(sums.data[row * sums.stride + column]);
}

/// The sum over ranks, into the gradients of qkv.
template <class T>
void TransformerSegments<T>::take_key_gradient(const SegmentCall& call) const {
  const Wide<T>* from = wide(call, kKeyGradient);
  if (!from) return;
  const int64_t width = 2 * extent_.kv_width(), stride = extent_.qkv_width();
  T* to = at(call, kQkvGradient) + extent_.attention_width();
  kernel::parallel_ranges(
      extent(call).rows, 64, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          for (int64_t column = 0; column < width; ++column)
            to[row * stride + column] = static_cast<T>(from[row * width + column]);
      });
}

template class TransformerSegments<float>;
template class TransformerSegments<double>;
template class TransformerSegments<Bfloat16>;

}  // namespace strait::model
