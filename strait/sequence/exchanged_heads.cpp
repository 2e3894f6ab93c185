#include "strait/sequence/exchanged_heads.h"

#include <algorithm>
#include <utility>

namespace strait::sequence {

std::vector<SharedRows> shared_rows(const RankGroup& group, int64_t neighbour) {
  std::vector<SharedRows> runs;
  int64_t own = 0, shared = 0;
  for (size_t document = 0; document < group.lengths.size(); ++document) {
    const std::vector<Span> all = group.cut(document).spans(group.member);
    for (const Span& span :
         group.rank_cut(document).spans(group.member * group.head_ranks() + neighbour)) {
      int64_t before = shared;
      for (const Span& whole : all) {
        const Span both{std::max(span.begin, whole.begin), std::min(span.end, whole.end)};
        if (both.begin < both.end) {
          runs.push_back({own, before + both.begin - whole.begin, both.size()});
          own += both.size();
        }
        before += whole.size();
      }
    }
    shared += group.cut(document).tokens(group.member);
  }
  return runs;
}

RankLayout ring_layout(const RankGroup& group) {
  RankGroup ring = group;
  ring.first_row = 0;
  ring.rows = group.rows_of(group.member);
  ring.neighbours.clear();
  ring.neighbour = 0;
  RankLayout layout;
  for (int64_t round = 0; round < ring.size; ++round) layout.order.push_back({0, round});
  layout.attention_rows = layout.linear_rows = ring.rows;
  layout.rows = std::max<int64_t>(1, ring.rows);
  layout.groups = {std::move(ring)};
  layout.backward_order = backward_order_of(layout);
  return layout;
}

std::vector<int64_t> turns_of(int64_t neighbour, int64_t neighbours) {
  std::vector<int64_t> order;
  for (int64_t turn = 0; turn < neighbours; ++turn)
    if (const int64_t other = (turn + neighbours - neighbour) % neighbours; other != neighbour)
      order.push_back(other);
  return order;
}

}  // namespace strait::sequence
