// Neighbours that exchange heads for some of a batch's documents: what they send each other, packed
// and placed.
#include <algorithm>
#include <vector>

#include "strait/base/errors.h"
#include "strait/model/transformer_segments.h"
#include "strait/sequence/exchanged_heads.h"

namespace strait::model {

using enum BlockValue;

namespace {

bool is_pack(RemapStep step) { return static_cast<int>(step) % 2 == 0; }
bool has_keys(RemapStep step) {
  return step == RemapStep::kPackQkv || step == RemapStep::kPlaceQkv ||
         step == RemapStep::kPackQkvGradient || step == RemapStep::kPlaceQkvGradient;
}
/// Of the rank's own rows and all heads.
bool has_all_heads(RemapStep step) {
  return step == RemapStep::kPackQkv || step == RemapStep::kPlaceAttention ||
         step == RemapStep::kPackAttentionGradient || step == RemapStep::kPlaceQkvGradient;
}
BlockValue value_of(RemapStep step) {
  switch (step) {
    case RemapStep::kPackQkv:
    case RemapStep::kPlaceQkv:
      return kQkv;
    case RemapStep::kPackAttention:
    case RemapStep::kPlaceAttention:
      return kAttention;
    case RemapStep::kPackAttentionGradient:
    case RemapStep::kPlaceAttentionGradient:
      return kAttentionGradient;
    default:
      return kQkvGradient;
  }
}

/// To or from what is moved, whose numbers are not wider than the others.
template <class Own, class Moved>
void copy(Own* own, Moved* moved, int64_t count, bool packs) {
  if (packs)
    std::transform(own, own + count, moved, [](Own number) { return static_cast<Moved>(number); });
  else
    std::transform(moved, moved + count, own,
                   [](Moved number) { return static_cast<Own>(number); });
}

}  // namespace

/// Keys and values have wide gradients until qkv's are complete; what is sent is what they round
/// to.
template <class T>
void TransformerSegments<T>::exchange_heads(const SegmentCall& call, RemapStep step,
                                            const GroupRound& where) const {
  ensure(call.batch->layout != nullptr && static_cast<int>(step) < 8, "heads without a plan");
  const sequence::RankGroup& group = call.batch->layout->groups[static_cast<size_t>(where.group)];
  const int64_t ranks = group.head_ranks(), own = has_all_heads(step) ? ranks : 1;
  const int64_t place = has_all_heads(step) ? where.round : 0;
  const int64_t queries = extent_.attention_width() / ranks, keys = extent_.kv_width() / ranks;
  const int64_t width = queries + (has_keys(step) ? 2 * keys : 0);
  T* const value = at(call, value_of(step));
  Wide<T>* const gradients = value_of(step) == kQkvGradient ? wide(call, kKeyGradient) : nullptr;
  const auto move_row = [&](int64_t row, T* moved) {
    T* const first = value + row * own * width;
    copy(first + place * queries, moved, queries, is_pack(step));
    for (int64_t part = 0; has_keys(step) && part < 2; ++part) {  // keys, values
      T* const to = moved + queries + part * keys;
      const int64_t column = (part * own + place) * keys;
      if (gradients)
        copy(gradients + row * own * 2 * keys + column, to, keys, is_pack(step));
      else
        copy(first + own * queries + column, to, keys, is_pack(step));
    }
  };
  const std::vector<sequence::SharedRows> all = {{0, group.first_row, group.rows}};
  const auto runs = has_all_heads(step) ? all : sequence::shared_rows(group, where.round);
  for (const sequence::SharedRows& run : runs)
    kernel::parallel_ranges(run.count, 64, call.settings->threads, [&](int64_t begin, int64_t end) {
      for (int64_t at_row = begin; at_row < end; ++at_row)
        move_row(run.shared + at_row, at(call, kMovedRows) + (run.own + at_row) * width);
    });
}

template class TransformerSegments<float>;
template class TransformerSegments<double>;
template class TransformerSegments<Bfloat16>;

}  // namespace strait::model
