// Attention of a batch's documents where a plan says which ranks share which (Zeppelin's engine):
// group by group, and in a group round by round.
#include <algorithm>
#include <limits>
#include <vector>

#include "strait/base/errors.h"
#include "strait/model/transformer_segments.h"
#include "strait/sequence/attend.h"
#include "strait/sequence/exchanged_heads.h"

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
bool exchanges_heads(const SegmentCall& call, const GroupRound& where) {
  return group_of(call, where).head_ranks() > 1;
}

template <class V>
void zero_rows(V* to, int64_t begin, int64_t end, int64_t width, int threads) {
  kernel::parallel_ranges((end - begin) * width, 4096, threads, [&](int64_t first, int64_t last) {
    std::fill(to + begin * width + first, to + begin * width + last, V{});
  });
}

/// Of a group's key heads, which may be some alone: where they stand among all, and the columns of
/// keys, and of values, that go around.
struct GroupColumns {
  sequence::KeyHeads heads;
  int64_t first = 0, width = 0;
  GroupColumns(const sequence::RankGroup& group, const BlockExtent& extent)
      : heads(group.key_heads(extent.kv_heads)),
        first(heads.begin * extent.head_width),
        width(heads.size() * extent.head_width) {}
  int64_t stride() const { return 2 * width; }
};

/// Where their gradients stand: among those of all heads for a rank's own keys, alone for others'.
struct GradientColumns {
  int64_t stride = 0, values = 0;  // of rows; from keys to values
  int64_t first = 0;               // of all columns, the first that is there
  GradientColumns(const GroupColumns& keys, bool own, const BlockExtent& extent)
      : stride(own ? 2 * extent.kv_width() : keys.stride()),
        values(own ? extent.kv_width() : keys.width),
        first(own ? 0 : keys.first) {}
};

/// Of a document of a round, or a chunk of it: where the rank's rows and the holder's begin in the
/// group.
struct DocumentRows {
  std::vector<sequence::Span> queries, keys;
  int64_t query_row = 0, key_row = 0;
};

std::vector<DocumentRows> documents_of(const sequence::RankGroup& group, const GroupRound& where) {
  const int64_t holder = group.holder(where.round);
  std::vector<DocumentRows> documents;
  int64_t query_row = 0, key_row = 0;
  for (size_t document = 0; document < group.lengths.size(); ++document) {
    const sequence::Cut cut = group.cut(document);
    if (where.pairs == sequence::OwnPairs::kAll) {
      documents.push_back({cut.spans(group.member), cut.spans(holder), query_row, key_row});
    } else {
      const sequence::Span first = cut.chunks(group.member).front();
      const auto row_of = [&](const sequence::Span& chunk) {
        return query_row + (chunk == first ? 0 : first.size());
      };
      for (const sequence::Block& block : sequence::own_blocks(cut, group.member, where.pairs))
        documents.push_back(
            {{block.queries}, {block.keys}, row_of(block.queries), row_of(block.keys)});
    }
    query_row += cut.tokens(group.member);
    key_row += cut.tokens(holder);
  }
  return documents;
}

/// Keys and values of a round: another rank's alone, or this one's own behind its queries.
template <class T>
struct GroupKeys {
  const T* first = nullptr;        // row and column
  int64_t column = 0;              // of all columns, the first that is there
  int64_t stride = 0, values = 0;  // of rows; from keys to values
  GroupKeys(const SegmentCall& call, const GroupRound& where, const BlockExtent& extent) {
    const sequence::RankGroup& group = group_of(call, where);
    const GroupColumns keys(group, extent);
    if (where.round > 0) {
      first = static_cast<const T*>(call[kKeys]);
      column = keys.first;
      stride = keys.stride();
      values = keys.width;
    } else {
      stride = extent.qkv_width();
      first =
          static_cast<const T*>(call[kQkv]) + group.first_row * stride + extent.attention_width();
      values = extent.kv_width();
    }
  }
  void give(const DocumentRows& rows, int64_t column_of_head, sequence::AttendCall<T>& call) const {
    call.query_spans = rows.queries;
    call.key_spans = rows.keys;
    call.kv_stride = stride;
    call.k = first + rows.key_row * stride + column_of_head - column;
    call.v = call.k + values;
  }
};

}  // namespace

template <class T>
void TransformerSegments<T>::run_ring_of_heads(const SegmentCall& call, const GroupRound& where,
                                               const HeadRingStep& act) const {
  const sequence::RankGroup& group = group_of(call, where);
  const sequence::RankLayout ring = sequence::ring_layout(group);
  TransformerSegments block = *this;
  block.extent_.heads /= group.head_ranks();
  block.extent_.kv_heads /= group.head_ranks();
  Batch batch = *call.batch;
  batch.layout = &ring;
  batch.tokens = ring.rows;
  SegmentCall part = call;
  part.batch = &batch;
  part.first_head += group.neighbour * block.extent_.heads;
  act(block, part);
}

template <class T>
void TransformerSegments<T>::pack_group(const SegmentCall& call, const GroupRound& where) const {
  if (exchanges_heads(call, where))
    return run_ring_of_heads(call, where,
                             [&](const TransformerSegments& block, const SegmentCall& part) {
                               block.pack_group(part, {0, where.round});
                             });
  const sequence::RankGroup& group = group_of(call, where);
  const GroupColumns keys(group, extent_);
  const int64_t stride = extent_.qkv_width();
  const T* from =
      at(call, kQkv) + group.first_row * stride + extent_.attention_width() + keys.first;
  T* to = at(call, kKeys);
  kernel::parallel_ranges(group.rows, 16, call.settings->threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (const int64_t values : {0, 1})
        std::copy_n(from + row * stride + values * extent_.kv_width(), keys.width,
                    to + row * keys.stride() + values * keys.width);
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
          .log_sum_exp = wide(call, kLogSumExp) + head * tokens + first_row,
          .products = call.settings->products,
          .scale = scale_,
          .cap = cap_};
}

template <class T>
void TransformerSegments<T>::attend_group(const SegmentCall& call, const GroupRound& where) const {
  if (exchanges_heads(call, where))
    return run_ring_of_heads(call, where,
                             [&](const TransformerSegments& block, const SegmentCall& part) {
                               block.attend_group(part, {0, where.round});
                             });
  const sequence::RankGroup& group = group_of(call, where);
  const int64_t width = extent_.attention_width(), tokens = call.batch->tokens;
  const int threads = call.settings->threads;
  // Not wider than the result itself.
  Wide<T>* const all =
      call[kAttentionSum] ? wide(call, kAttentionSum) : static_cast<Wide<T>*>(call[kAttention]);
  if (where == call.batch->layout->first_of_rows(call.batch->layout->order)) {
    zero_rows(all, 0, tokens, width, threads);
    zero_rows(at(call, kAttention), 0, tokens, width, threads);  // and what no document fills
    std::fill_n(wide(call, kLogSumExp), extent_.heads * tokens,
                -std::numeric_limits<Wide<T>>::infinity());
  }
  const std::vector<DocumentRows> documents = documents_of(group, where);
  const GroupColumns keys(group, extent_);
  const GroupKeys<T> group_keys(call, where, extent_);
  const int64_t heads = keys.heads.size() * sharers();
  kernel::parallel_ranges(
      heads * std::ssize(documents), 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const DocumentRows& rows = documents[static_cast<size_t>(item / heads)];
          const int64_t head = keys.heads.begin * sharers() + item % heads;
          const int64_t row = group.first_row + rows.query_row;
          sequence::AttendCall<T> one = group_call(call, row, head);
          group_keys.give(rows, key_column(head), one);
          sequence::attend(one, all + row * width + head * extent_.head_width, width);
        }
      });
  if (!is_last_round(call, where) || !call[kAttentionSum]) return;
  T* to = at(call, kAttention);
  const int64_t columns = heads * extent_.head_width;
  kernel::parallel_ranges(group.rows, 16, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = group.first_row + begin; row < group.first_row + end; ++row) {
      const int64_t first = row * width + keys.first * sharers();
      std::transform(all + first, all + first + columns, to + first,
                     [](Wide<T> number) { return static_cast<T>(number); });
    }
  });
}

/// Key heads are independent of each other.
template <class T>
void TransformerSegments<T>::attend_group_input(const SegmentCall& call,
                                                const GroupRound& where) const {
  if (exchanges_heads(call, where))
    return run_ring_of_heads(call, where,
                             [&](const TransformerSegments& block, const SegmentCall& part) {
                               block.attend_group_input(part, {0, where.round, where.pairs});
                             });
  const sequence::RankGroup& group = group_of(call, where);
  const int threads = call.settings->threads;
  const int64_t tokens = call.batch->tokens;
  const GroupColumns keys(group, extent_);
  const GradientColumns columns(keys, where.round == 0, extent_);
  const GroupKeys<T> group_keys(call, where, extent_);
  Wide<T>* const gradients = wide(call, kKeyGradient);
  const sequence::RankLayout& layout = *call.batch->layout;
  if (where == layout.first_of_rows(layout.backward_order)) {
    zero_rows(gradients, 0, tokens, columns.stride, threads);  // and of what no document fills
    for (int64_t head = 0; head < extent_.heads; ++head) begin_gradients(call, 0, head);
  } else if (where.round > 0) {
    zero_rows(gradients, 0, group.rows_of(group.holder(where.round)), columns.stride, threads);
  }
  const std::vector<DocumentRows> documents = documents_of(group, where);
  const int64_t heads = keys.heads.size();
  kernel::parallel_ranges(
      heads * std::ssize(documents), 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item)
          for (int64_t sharer = 0; sharer < sharers(); ++sharer) {
            const DocumentRows& rows = documents[static_cast<size_t>(item / heads)];
            const int64_t head = (keys.heads.begin + item % heads) * sharers() + sharer;
            const int64_t row = group.first_row + rows.query_row;
            const int64_t key_gradient = (where.round == 0 ? group.first_row : 0) + rows.key_row;
            const QuerySums sums = query_sums(call, 0, head);
            sequence::AttendBackwardCall<T> one{
                .forward = group_call(call, row, head),
                .out_gradient = at(call, kAttentionGradient) + row * extent_.attention_width() +
                                head * extent_.head_width,
                .out_gradient_stride = extent_.attention_width(),
                .delta = wide(call, kDelta) + head * tokens + row,
                .dq = sums.data + row * sums.stride,
                .dq_stride = sums.stride,
                .dk = gradients + key_gradient * columns.stride + key_column(head) - columns.first,
                .kv_gradient_stride = columns.stride};
            one.dv = one.dk + columns.values;
            group_keys.give(rows, key_column(head), one.forward);
            sequence::attend_backward(one);
          }
      });
  if (where == layout.last_of_rows(layout.backward_order))
    for (int64_t head = 0; head < extent_.heads; ++head) round_query_gradient(call, 0, head);
}

template <class T>
void TransformerSegments<T>::add_group_gradient(const SegmentCall& call,
                                                const GroupRound& where) const {
  if (exchanges_heads(call, where))
    return run_ring_of_heads(call, where,
                             [&](const TransformerSegments& block, const SegmentCall& part) {
                               block.add_group_gradient(part, {0, where.round});
                             });
  const sequence::RankGroup& group = group_of(call, where);
  const bool home = where.round == group.size;  // the sum of what others have made
  const int64_t rows = home ? group.rows : group.rows_of(group.holder(where.round));
  const GroupColumns keys(group, extent_);
  const GradientColumns columns(keys, home, extent_);
  const Wide<T>* const from = wide(call, kGatheredKeyGradient);
  Wide<T>* const to = wide(call, kKeyGradient) + (home ? group.first_row * columns.stride : 0) +
                      keys.first - columns.first;
  kernel::parallel_ranges(rows, 16, call.settings->threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0; column < keys.stride(); ++column) {
        const bool value = column >= keys.width;
        to[row * columns.stride + column + (value ? columns.values - keys.width : 0)] +=
            from[row * keys.stride() + column];
      }
  });
}

/// Keys and values have wide gradients until qkv's are complete; what is sent is what they round
/// to. Where linear modules have rows of no document in place of those that leave, zeros stay.
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
      if (row >= call.batch->layout->rows) continue;
      std::fill_n(own, stride, T{});
      std::fill_n(keys, width, Wide<T>{});
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
