// Attention of a batch's documents where a plan says which ranks share which (Zeppelin's engine):
// group by group, and in a group round by round.
#include <algorithm>
#include <limits>
#include <vector>

#include "strait/base/errors.h"
#include "strait/model/transformer_segments.h"
#include "strait/sequence/attend.h"

namespace strait::model {

using enum BlockValue;

namespace {

const sequence::RankGroup& group_of(const SegmentCall& call, const GroupRound& where) {
  ensure(call.batch->layout != nullptr && call.batch->batch == 1, "a batch without a plan");
  return call.batch->layout->groups[static_cast<size_t>(where.group)];
}
bool is_last_round(const SegmentCall& call, const GroupRound& where) {
  return where.round + 1 == group_of(call, where).size;
}
bool is_first(const SegmentCall& call, const GroupRound& where) {
  return where == call.batch->layout->order.front();
}
bool is_last(const SegmentCall& call, const GroupRound& where) {
  return where == call.batch->layout->order.back();
}

template <class V>
void zero_rows(V* to, int64_t begin, int64_t end, int64_t width, int threads) {
  kernel::parallel_ranges((end - begin) * width, 4096, threads, [&](int64_t first, int64_t last) {
    std::fill(to + begin * width + first, to + begin * width + last, V{});
  });
}

/// A document of a round: where the rank's rows of it and the holder's begin in the group.
struct DocumentRows {
  std::vector<sequence::Span> queries, keys;
  int64_t query_row = 0, key_row = 0;
};

std::vector<DocumentRows> documents_of(const sequence::RankGroup& group, int64_t round) {
  const int64_t holder = group.holder(round);
  std::vector<DocumentRows> documents;
  int64_t query_row = 0, key_row = 0;
  for (size_t document = 0; document < group.lengths.size(); ++document) {
    const sequence::Cut cut = group.cut(document);
    documents.push_back({cut.spans(group.member), cut.spans(holder), query_row, key_row});
    query_row += cut.tokens(group.member);
    key_row += cut.tokens(holder);
  }
  return documents;
}

}  // namespace

template <class T>
void TransformerSegments<T>::pack_group(const SegmentCall& call, const GroupRound& where) const {
  const sequence::RankGroup& group = group_of(call, where);
  const int64_t width = 2 * extent_.kv_width(), stride = extent_.qkv_width();
  const T* from = at(call, kQkv) + group.first_row * stride + extent_.attention_width();
  T* to = at(call, kKeys);
  kernel::parallel_ranges(group.rows, 16, call.settings->threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::copy_n(from + row * stride, width, to + row * width);
  });
}

template <class T>
sequence::AttendCall<T> TransformerSegments<T>::group_call(const SegmentCall& call,
                                                           int64_t first_row, int64_t head) const {
  const int64_t stride = extent_.qkv_width(), tokens = call.batch->tokens;
  return {.heads = {1, 1, extent_.head_width},
          .window = window_,
          .q = at(call, kQkv) + first_row * stride + head * extent_.head_width,
          .q_stride = stride,
          .kv_stride = 2 * extent_.kv_width(),
          .log_sum_exp = wide(call, kLogSumExp) + head * tokens + first_row,
          .scale = scale_,
          .cap = cap_};
}

template <class T>
void TransformerSegments<T>::attend_group(const SegmentCall& call, const GroupRound& where) const {
  const sequence::RankGroup& group = group_of(call, where);
  const int64_t width = extent_.attention_width(), tokens = call.batch->tokens;
  const int threads = call.settings->threads;
  // Not wider than the result itself.
  Wide<T>* const all =
      call[kAttentionSum] ? wide(call, kAttentionSum) : static_cast<Wide<T>*>(call[kAttention]);
  if (is_first(call, where)) {
    zero_rows(all, 0, tokens, width, threads);
    zero_rows(at(call, kAttention), 0, tokens, width, threads);  // and what no document fills
    std::fill_n(wide(call, kLogSumExp), extent_.heads * tokens,
                -std::numeric_limits<Wide<T>>::infinity());
  }
  const std::vector<DocumentRows> documents = documents_of(group, where.round);
  kernel::parallel_ranges(
      extent_.heads * std::ssize(documents), 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const DocumentRows& rows = documents[static_cast<size_t>(item / extent_.heads)];
          const int64_t head = item % extent_.heads, row = group.first_row + rows.query_row;
          sequence::AttendCall<T> one = group_call(call, row, head);
          one.query_spans = rows.queries;
          one.key_spans = rows.keys;
          one.k = at(call, kKeys) + rows.key_row * one.kv_stride + key_column(head);
          one.v = one.k + extent_.kv_width();
          sequence::attend(one, all + row * width + head * extent_.head_width, width);
        }
      });
  if (!is_last_round(call, where) || !call[kAttentionSum]) return;
  T* to = at(call, kAttention);
  kernel::parallel_ranges(group.rows * width, 4096, threads, [&](int64_t begin, int64_t end) {
    const int64_t first = group.first_row * width;
    std::transform(all + first + begin, all + first + end, to + first + begin,
                   [](Wide<T> number) { return static_cast<T>(number); });
  });
}

/// Key heads are independent of each other.
template <class T>
void TransformerSegments<T>::attend_group_input(const SegmentCall& call,
                                                const GroupRound& where) const {
  const sequence::RankGroup& group = group_of(call, where);
  const int threads = call.settings->threads;
  const int64_t tokens = call.batch->tokens, width = 2 * extent_.kv_width();
  const int64_t sharers = extent_.heads / extent_.kv_heads;
  Wide<T>* const gradients = wide(call, kKeyGradient);
  if (is_first(call, where)) {
    zero_rows(gradients, 0, tokens, width, threads);  // and of what no document fills
    for (int64_t head = 0; head < extent_.heads; ++head) begin_gradients(call, 0, head);
  } else if (where.round > 0) {
    zero_rows(gradients, 0, group.rows_of(group.holder(where.round)), width, threads);
  }
  const std::vector<DocumentRows> documents = documents_of(group, where.round);
  kernel::parallel_ranges(
      extent_.kv_heads * std::ssize(documents), 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item)
          for (int64_t sharer = 0; sharer < sharers; ++sharer) {
            const DocumentRows& rows = documents[static_cast<size_t>(item / extent_.kv_heads)];
            const int64_t head = item % extent_.kv_heads * sharers + sharer;
            const int64_t row = group.first_row + rows.query_row;
            const int64_t key_gradient = where.round == 0 ? row : rows.key_row;
            const QuerySums sums = query_sums(call, 0, head);
            sequence::AttendBackwardCall<T> one{
                .forward = group_call(call, row, head),
                .out_gradient = at(call, kAttentionGradient) + row * extent_.attention_width() +
                                head * extent_.head_width,
                .out_gradient_stride = extent_.attention_width(),
                .delta = wide(call, kDelta) + head * tokens + row,
                .dq = sums.data + row * sums.stride,
                .dq_stride = sums.stride,
                .dk = gradients + key_gradient * width + key_column(head),
                .kv_gradient_stride = width};
            one.dv = one.dk + extent_.kv_width();
            one.forward.query_spans = rows.queries;
            one.forward.key_spans = rows.keys;
            one.forward.k =
                at(call, kKeys) + rows.key_row * one.forward.kv_stride + key_column(head);
            one.forward.v = one.forward.k + extent_.kv_width();
            sequence::attend_backward(one);
          }
      });
  if (is_last(call, where))
    for (int64_t head = 0; head < extent_.heads; ++head) round_query_gradient(call, 0, head);
}

template <class T>
void TransformerSegments<T>::add_group_gradient(const SegmentCall& call,
                                                const GroupRound& where) const {
  const sequence::RankGroup& group = group_of(call, where);
  const bool home = where.round == group.size;  // the sum of what others have made
  const int64_t rows = home ? group.rows : group.rows_of(group.holder(where.round));
  add_gathered(call, home ? group.first_row : 0, rows);
}

/// Keys and values have wide gradients until qkv's are complete; what is sent is what they round
/// to.
template <class T>
void TransformerSegments<T>::move_qkv_gradient(const SegmentCall& call, bool packs,
                                               const RowRange& rows) const {
  const int64_t stride = extent_.qkv_width(), queries = extent_.attention_width();
  const int64_t width = 2 * extent_.kv_width();
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    T* const moved = at(call, kMovedRows) + (row - rows.begin) * stride;
    T* const own = at(call, kQkvGradient) + row * stride;
    Wide<T>* const keys = wide(call, kKeyGradient) + row * width;
    const auto narrow = [](Wide<T> number) { return static_cast<T>(number); };
    const auto widen = [](T number) { return static_cast<Wide<T>>(number); };
    if (packs) {
      std::copy_n(own, queries, moved);
      std::transform(keys, keys + width, moved + queries, narrow);
    } else {
      std::copy_n(moved, queries, own);
      std::transform(moved + queries, moved + stride, keys, widen);
    }
  }
}

template <class T>
void TransformerSegments<T>::move_rows(const SegmentCall& call, RemapStep step,
                                       const RowRange& rows) const {
  const auto copy = [&](BlockValue value, int64_t width, bool packs) {
    T* const own = at(call, value) + rows.begin * width;
    const int64_t count = (rows.end - rows.begin) * width;
    packs ? std::copy_n(own, count, at(call, kMovedRows))
          : std::copy_n(at(call, kMovedRows), count, own);
  };
  switch (step) {
    case RemapStep::kPackQkv:
    case RemapStep::kPlaceQkv:
      return copy(kQkv, extent_.qkv_width(), step == RemapStep::kPackQkv);
    case RemapStep::kPackAttention:
    case RemapStep::kPlaceAttention:
      return copy(kAttention, extent_.attention_width(), step == RemapStep::kPackAttention);
    case RemapStep::kPackAttentionGradient:
    case RemapStep::kPlaceAttentionGradient:
      return copy(kAttentionGradient, extent_.attention_width(),
                  step == RemapStep::kPackAttentionGradient);
    case RemapStep::kPackQkvGradient:
    case RemapStep::kPlaceQkvGradient:
      return move_qkv_gradient(call, step == RemapStep::kPackQkvGradient, rows);
    case RemapStep::kPackInput:
    case RemapStep::kPlaceInput:
      return copy(kInput, extent_.width, step == RemapStep::kPackInput);
    case RemapStep::kPackMiddle:
    case RemapStep::kPlaceMiddle:
      return copy(kMiddle, extent_.width, step == RemapStep::kPackMiddle);
    case RemapStep::kPackMiddleGradient:
      copy(kMiddleGradient, extent_.width, true);
      return zero_rows(at(call, kMiddleGradient), rows.begin, rows.end, extent_.width, 1);
    case RemapStep::kPlaceMiddleGradient:
      return copy(kMiddleGradient, extent_.width, false);
    case RemapStep::kPackInputGradient:
    case RemapStep::kPlaceInputGradient:
      return copy(kInputGradient, extent_.width, step == RemapStep::kPackInputGradient);
  }
}

template class TransformerSegments<float>;
template class TransformerSegments<double>;
template class TransformerSegments<Bfloat16>;

}  // namespace strait::model
