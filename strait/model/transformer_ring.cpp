// Ring attention (Liu et al. 2023) where several ranks share every sequence: each round meets the
// keys of one of them, and merges what it finds with what the rounds before have found.
#include <algorithm>
#include <limits>
#include <vector>

#include "strait/model/transformer_segments.h"

namespace strait::model {

using enum BlockValue;
using sequence::OwnPairs;

namespace {

/// What the rank has whose keys are here in a round.
sequence::Share holder(sequence::Share share, int64_t round) {
  share.member = (share.member + share.members - round) % share.members;
  return share;
}

/// Whether chunk `keys` is attended to by chunk `queries` of the same rank.
bool has_pairs(OwnPairs pairs, int64_t queries, int64_t keys) {
  return pairs == OwnPairs::kAll || (queries == keys) == (pairs == OwnPairs::kWithin);
}

}  // namespace

template <class T>
void TransformerSegments<T>::attend_round(const SegmentCall& call, int64_t round) const {
  if (has_head_ring(call))
    return run_head_ring(call, [=](const TransformerSegments& block, const SegmentCall& part) {
      block.attend_round(part, round);
    });
  const sequence::Share share = call.batch->share();
  kernel::parallel_ranges(call.batch->batch * extent_.heads, 1, call.settings->threads,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t item = begin; item < end; ++item)
                              attend_round_head(call, round, item);
                          });
  if (round + 1 < share.members || !call[kAttentionSum]) return;
  const Wide<T>* from = wide(call, kAttentionSum);
  T* to = at(call, kAttention);
  kernel::parallel_ranges(extent(call).rows * extent_.attention_width(), 4096,
                          call.settings->threads, [&](int64_t begin, int64_t end) {
                            std::transform(from + begin, from + end, to + begin,
                                           [](Wide<T> number) { return static_cast<T>(number); });
                          });
}

/// Head item % heads of sequence item / heads.
template <class T>
void TransformerSegments<T>::attend_round_head(const SegmentCall& call, int64_t round,
                                               int64_t item) const {
  const int64_t sequence = item / extent_.heads, head = item % extent_.heads;
  const sequence::Share share = call.batch->share(), theirs = holder(share, round);
  const int64_t chunk = share.chunk(), width = extent_.head_width;
  const int64_t out_stride = extent_.attention_width();
  const kernel::DropoutMask mask = site(call, DropoutPlace::kAttention).mask(sequence);
  const RoundKeys all_keys = round_keys(call, round == 0);
  std::vector<Wide<T>> part(static_cast<size_t>(chunk * width)), sums(static_cast<size_t>(chunk));
  // Not wider than the result itself.
  Wide<T>* const all =
      call[kAttentionSum] ? wide(call, kAttentionSum) : static_cast<Wide<T>*>(call[kAttention]);
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t row = half * chunk;
    kernel::AttentionCall<T> rows = chunk_call(call, sequence, head, half);
    Wide<T>* const merged_sums = rows.log_sum_exp;
    Wide<T>* const merged = all + (sequence * share.tokens + row) * out_stride + head * width;
    rows.log_sum_exp = sums.data();
    rows.mask = &mask;
    if (round == 0) std::fill_n(merged_sums, chunk, -std::numeric_limits<Wide<T>>::infinity());
    rows.kv_stride = all_keys.stride;
    for (int64_t keys = 0; keys < 2; ++keys) {
      if (theirs.begin(keys) > rows.first) continue;
      rows.k = all_keys.keys + (sequence * share.tokens + keys * chunk) * rows.kv_stride +
               key_column(head);
      rows.v = rows.k + extent_.kv_width();
      kernel::partial_attention<T>({rows, chunk, theirs.begin(keys), part.data(), width});
      kernel::merge_attention<Wide<T>>(
          {chunk, width, merged, out_stride, merged_sums, part.data(), width, sums.data()});
    }
  }
}

template <class T>
typename TransformerSegments<T>::RoundKeys TransformerSegments<T>::round_keys(
    const SegmentCall& call, bool own) const {
  if (!own) return {at(call, kKeys), 2 * extent_.kv_width()};
  return {at(call, kQkv) + extent_.attention_width(), extent_.qkv_width()};
}

/// Key heads are independent of each other.
template <class T>
void TransformerSegments<T>::attend_round_input(const SegmentCall& call,
                                                const RingRound& where) const {
  if (has_head_ring(call))
    return run_head_ring(call, [&](const TransformerSegments& block, const SegmentCall& part) {
      block.attend_round_input(part, where);
    });
  const int threads = call.settings->threads;
  Wide<T>* gradients = wide(call, kKeyGradient);
  if (where.pairs != OwnPairs::kWithin)
    kernel::parallel_ranges(extent(call).rows / where.part.parts * 2 * extent_.kv_width(), 4096,
                            threads, [&](int64_t begin, int64_t end) {
                              std::fill(gradients + begin, gradients + end, Wide<T>{0});
                            });
  const int64_t group = extent_.heads / extent_.kv_heads;
  kernel::parallel_ranges(call.batch->batch * extent_.kv_heads, 1, threads,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t item = begin * group; item < end * group; ++item)
                              attend_round_head_input(call, where, item);
                          });
}

template <class T>
void TransformerSegments<T>::attend_round_head_input(const SegmentCall& call,
                                                     const RingRound& where, int64_t item) const {
  const int64_t sequence = item / extent_.heads, head = item % extent_.heads;
  const sequence::Share share = call.batch->share(), theirs = holder(share, where.round);
  const int64_t first = where.part.own_row(0, share.chunk());
  const int64_t rows = where.part.rows(share.chunk());
  const kernel::DropoutMask mask = site(call, DropoutPlace::kAttention).mask(sequence);
  const RoundKeys all_keys = round_keys(call, where.round == 0);
  if (where.round == 0 && where.pairs != OwnPairs::kWithin) begin_gradients(call, sequence, head);
  for (int64_t half = 0; half < 2; ++half) {
    kernel::PartialAttentionBackwardCall<T> part = chunk_gradient(call, sequence, head, half);
    part.rows.mask = &mask;
    part.rows.kv_stride = all_keys.stride;
    part.keys = rows;
    for (int64_t keys = 0; keys < 2; ++keys) {
      if (theirs.begin(keys) > part.rows.first || !has_pairs(where.pairs, half, keys)) continue;
      part.key_first = theirs.begin(keys) + first;
      const int64_t row = (2 * sequence + keys) * rows;
      attend_keys_input(
          part, all_keys.keys + row * all_keys.stride + key_column(head),
          wide(call, kKeyGradient) + row * part.kv_gradient_stride + key_column(head));
    }
  }
  if (where.pairs == OwnPairs::kWithin) round_query_gradient(call, sequence, head);
}

template <class T>
void TransformerSegments<T>::add_key_gradient(const SegmentCall& call,
                                              const RingRound& where) const {
  if (has_head_ring(call))
    return run_head_ring(call, [&](const TransformerSegments& block, const SegmentCall& part) {
      block.add_key_gradient(part, where);
    });
  const sequence::Share share = call.batch->share();
  const int64_t width = 2 * extent_.kv_width();
  const bool home = where.round == share.members;  // among those of all parts
  const Wide<T>* const from = wide(call, kGatheredKeyGradient);
  Wide<T>* const to = wide(call, kKeyGradient);
  kernel::parallel_ranges(
      extent(call).rows / where.part.parts, 16, call.settings->threads,
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          Wide<T>* const sum = to + (home ? where.part.own_row(row, share.chunk()) : row) * width;
          for (int64_t column = 0; column < width; ++column)
            sum[column] += from[row * width + column];
        }
      });
}

template class TransformerSegments<float>;
template class TransformerSegments<double>;
template class TransformerSegments<Bfloat16>;

}  // namespace strait::model
