// Attention where several ranks share every sequence and exchange heads (Jacobs et al. 2023,
// DeepSpeed-Ulysses): a rank attends for some heads, to all tokens, as one rank alone would do for
// them, so that forward and backward have its bits. Or neighbours do so, as if each such group were
// one rank of a ring (Fang & Zhao 2024, USP).
#include <algorithm>

#include "strait/base/errors.h"
#include "strait/model/transformer_segments.h"

namespace strait::model {

using enum BlockValue;

template <class T>
void TransformerSegments<T>::run_heads(const SegmentCall& call, HeadStep step) const {
  if (step == HeadStep::kSplitGradient)
    run_head_ring(call, [](const TransformerSegments& block, const SegmentCall& part) {
      block.take_key_gradient(part);
    });
  Batch group = *call.batch;
  group.sharers = group.head_sharers;
  group.sharer %= group.sharers;
  SegmentCall among = call;
  among.batch = &group;
  run_head_step(among, step);
}

template <class T>
void TransformerSegments<T>::run_head_step(const SegmentCall& call, HeadStep step) const {
  const HeadPart part = head_part(call);
  switch (step) {
    case HeadStep::kSend:
      return copy_heads(call, {at(call, kQkv), at(call, kHeadSend), true, true});
    case HeadStep::kAttend:
      return attend_heads(call);
    case HeadStep::kReceive:
      return copy_heads(call, {at(call, kAttention), at(call, kHeadOutReceive), false, false});
    case HeadStep::kSendGradient:
      send_deltas(call);
      return copy_heads(call, {at(call, kAttentionGradient), at(call, kHeadOutSend), false, true});
    case HeadStep::kAttendInput:
      return attend_heads_input(call);
    case HeadStep::kReceiveGradient:
      return copy_heads(call, {at(call, kQkvGradient), at(call, kHeadReceive), true, false});
    case HeadStep::kOrder:
      return order_rows(call, at(call, kHeadReceive), at(call, kQkv), part.width);
    case HeadStep::kSplit:
      return split_rows(call, at(call, kHeadAttention), at(call, kHeadOutSend), part.out_width);
    case HeadStep::kOrderGradient:
      order_deltas(call);
      return order_rows(call, at(call, kHeadOutReceive), at(call, kAttentionGradient),
                        part.out_width);
    case HeadStep::kSplitGradient:
      return split_rows(call, at(call, kQkvGradient), at(call, kHeadSend), part.width);
  }
}

/// Chunks of neighbours lie side by side, and so do their mirror images: a group has two chunks, as
/// one rank of a ring has.
template <class T>
void TransformerSegments<T>::run_head_ring(const SegmentCall& call, const HeadRingStep& act) const {
  const int64_t ranks = call.batch->head_sharers;
  TransformerSegments block = *this;
  block.extent_.heads /= ranks;
  block.extent_.kv_heads /= ranks;
  Batch batch = *call.batch;
  batch.tokens *= ranks;
  batch.sharers /= ranks;
  batch.sharer /= ranks;
  batch.head_sharers = 1;
  batch.document_starts = nullptr;  // row_starts has those of all
  SegmentCall part = call;
  part.batch = &batch;
  part.first_head += call.batch->sharer % ranks * block.extent_.heads;
  part.give(kAttention, call[kHeadAttention]);
  act(block, part);
}

template <class T>
typename TransformerSegments<T>::HeadPart TransformerSegments<T>::head_part(
    const SegmentCall& call) const {
  const int64_t ranks = call.batch->sharers;
  return {ranks, extent_.heads / ranks, extent_.kv_heads / ranks, extent_.attention_width() / ranks,
          extent_.qkv_width() / ranks};
}

template <class T>
void TransformerSegments<T>::copy_heads(const SegmentCall& call, const HeadCopy& copy) const {
  const HeadPart part = head_part(call);
  const int64_t rows = extent(call).rows, keys = extent_.kv_width() / part.ranks;
  const int64_t stride = copy.with_keys ? extent_.qkv_width() : extent_.attention_width();
  kernel::parallel_ranges(rows, 64, call.settings->threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t rank = 0; rank < part.ranks; ++rank) {
        T* one = copy.by_rank + (rank * rows + row) * stride / part.ranks;
        T* whole = copy.columns + row * stride;
        const auto take = [&](int64_t first, int64_t width) {
          T* const here = whole + first + rank * width;
          std::copy_n(copy.to_ranks ? here : one, width, copy.to_ranks ? one : here);
          one += width;
        };
        take(0, part.out_width);
        if (!copy.with_keys) continue;
        take(extent_.attention_width(), keys);
        take(extent_.attention_width() + extent_.kv_width(), keys);
      }
  });
}

template <class T>
void TransformerSegments<T>::send_deltas(const SegmentCall& call) const {
  const int64_t rows = extent(call).rows, width = extent_.attention_width();
  kernel::parallel_ranges(
      extent_.heads, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t head = begin; head < end; ++head) {
          const int64_t column = head * extent_.head_width;
          kernel::attention_delta<T>({rows, extent_.head_width, at(call, kAttention) + column,
                                      width, at(call, kAttentionGradient) + column, width,
                                      wide(call, kHeadDeltaSend) + head * rows});
        }
      });
}

template <class T>
void TransformerSegments<T>::order_deltas(const SegmentCall& call) const {
  const sequence::Share share = call.batch->share();
  const int64_t heads = extent_.heads / share.members, batch = call.batch->batch;
  const int64_t chunks = 2 * share.members, chunk = share.chunk();
  Wide<T>* to = wide(call, kDelta);
  for (int64_t sequence = 0; sequence < batch; ++sequence)
    for (int64_t head = 0; head < heads; ++head)
      for (int64_t at = 0; at < chunks; ++at, to += chunk) {
        const bool mirrored = at >= share.members;
        const int64_t owner = mirrored ? chunks - 1 - at : at;
        const int64_t row = ((owner * heads + head) * batch + sequence) * share.tokens;
        std::copy_n(wide(call, kHeadDeltaReceive) + row + (mirrored ? chunk : 0), chunk, to);
      }
}

template <class T>
void TransformerSegments<T>::order_rows(const SegmentCall& call, const T* by_rank, T* ordered,
                                        int64_t width) const {
  const sequence::Share share = call.batch->share();
  const int64_t chunks = 2 * share.members, elements = share.chunk() * width;
  kernel::parallel_ranges(call.batch->batch * chunks, 1, call.settings->threads,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t at = begin; at < end; ++at)
                              std::copy_n(by_rank + key_row(call, at / chunks, at % chunks) * width,
                                          elements, ordered + at * elements);
                          });
}

template <class T>
void TransformerSegments<T>::split_rows(const SegmentCall& call, const T* ordered, T* by_rank,
                                        int64_t width) const {
  const sequence::Share share = call.batch->share();
  const int64_t chunks = 2 * share.members, elements = share.chunk() * width;
  kernel::parallel_ranges(
      call.batch->batch * chunks, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at)
          std::copy_n(ordered + at * elements, elements,
                      by_rank + key_row(call, at / chunks, at % chunks) * width);
      });
}

/// Head `head` of this rank's, over all tokens of a sequence.
template <class T>
kernel::AttentionCall<T> TransformerSegments<T>::heads_call(const SegmentCall& call,
                                                            int64_t sequence, int64_t head) const {
  const HeadPart part = head_part(call);
  const sequence::Share share = call.batch->share();
  const int64_t length = share.length(), width = extent_.head_width;
  const T* first = at(call, kQkv) + sequence * length * part.width;
  const int32_t* const starts = call.batch->row_starts;
  Wide<T>* const sums = wide(call, kLogSumExp);
  T* const out = at(call, kHeadAttention);  // null in a backward
  return {.queries = length,
          .head_width = width,
          .window = window_,
          .q = first + head * width,
          .q_stride = part.width,
          .k = first + part.out_width + key_column(head),
          .v = first + part.out_width + part.kv_heads * width + key_column(head),
          .kv_stride = part.width,
          .out = out ? out + sequence * length * part.out_width + head * width : nullptr,
          .out_stride = part.out_width,
          .log_sum_exp = sums ? sums + (sequence * part.heads + head) * length : nullptr,
          .starts = starts ? starts + sequence * length : nullptr,
          .head = static_cast<uint64_t>(call.first_head + share.member * part.heads + head),
          .products = call.settings->products,
          .scale = scale_,
          .cap = cap_};
}

template <class T>
void TransformerSegments<T>::attend_heads(const SegmentCall& call) const {
  ensure(!call.batch->document_starts || call.batch->row_starts,
         "heads are exchanged for whole sequences");
  const HeadPart part = head_part(call);
  order_rows(call, at(call, kHeadReceive), at(call, kQkv), part.width);
  const DropoutSite where = site(call, DropoutPlace::kAttention);
  kernel::parallel_ranges(
      call.batch->batch * part.heads, 1, call.settings->threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t sequence = item / part.heads;
          const kernel::DropoutMask mask = where.mask(sequence);
          kernel::AttentionCall<T> one = heads_call(call, sequence, item % part.heads);
          one.mask = &mask;
          kernel::attention(one);
        }
      });
  split_rows(call, at(call, kHeadAttention), at(call, kHeadOutSend), part.out_width);
}

template <class T>
void TransformerSegments<T>::attend_heads_input(const SegmentCall& call) const {
  const HeadPart part = head_part(call);
  T* const gradient = static_cast<T*>(call.workspace);
  T* const out_gradient = gradient + extent(call).rows * extent_.qkv_width();
  order_rows(call, at(call, kHeadOutReceive), out_gradient, part.out_width);
  order_deltas(call);
  kernel::parallel_ranges(call.batch->batch * part.kv_heads, 1, call.settings->threads,
                          [&](int64_t begin, int64_t end) {
                            for (int64_t item = begin; item < end; ++item)
                              attend_heads_group(call, item, out_gradient, gradient);
                          });
  split_rows(call, gradient, at(call, kHeadSend), part.width);
}

/// The heads that share keys and values `item` % kv_heads of sequence `item` / kv_heads.
template <class T>
void TransformerSegments<T>::attend_heads_group(const SegmentCall& call, int64_t item,
                                                const T* out_gradient, T* gradient) const {
  const HeadPart part = head_part(call);
  const int64_t sequence = item / part.kv_heads, group = part.heads / part.kv_heads;
  const int64_t head = item % part.kv_heads * group, length = call.batch->share().length();
  const int64_t rows = (sequence * part.heads + head) * length, column = head * extent_.head_width;
  const kernel::DropoutMask mask = site(call, DropoutPlace::kAttention).mask(sequence);
  kernel::AttentionBackwardCall<T> shared;
  shared.forward = heads_call(call, sequence, head);
  shared.forward.mask = &mask;
  shared.out_gradient = out_gradient + sequence * length * part.out_width + column;
  shared.out_gradient_stride = part.out_width;
  T* const first = gradient + sequence * length * part.width;
  shared.dq = first + column;
  shared.dk = first + part.out_width + key_column(head);
  shared.dv = shared.dk + part.kv_heads * extent_.head_width;
  shared.gradient_stride = part.width;
  shared.delta = wide(call, kDelta) + rows;
  if (call[kQuerySum]) shared.dq_sum = wide(call, kQuerySum) + rows * extent_.head_width;
  shared.group = group;
  kernel::attention_backward(shared);
}

template class TransformerSegments<float>;
template class TransformerSegments<double>;
template class TransformerSegments<Bfloat16>;

}  // namespace strait::model
