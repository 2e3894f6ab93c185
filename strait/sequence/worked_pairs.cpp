#include "strait/sequence/worked_pairs.h"

#include <algorithm>

namespace strait::sequence {
namespace {

constexpr int64_t kTile = 64;  // queries and keys: kernel/attention_tile-inl.h

int64_t worked(const Block& block) {
  int64_t sum = 0;
  for (int64_t query = block.queries.begin; query < block.queries.end; query += kTile) {
    const int64_t end = std::min(query + kTile, block.queries.end);
    const int64_t keys = std::clamp<int64_t>(end - block.keys.begin, 0, block.keys.size());
    sum += (end - query) * keys;
  }
  return sum;
}

}  // namespace

int64_t worked_pairs(const RankGroup& group, const EngineStep& step) {
  int64_t sum = 0;
  for (size_t document = 0; document < group.lengths.size(); ++document) {
    const Cut cut = group.cut(document);
    for (const Block& block : step.pairs == OwnPairs::kAll
                                  ? round_blocks(cut, group.member, group.distance(step.round))
                                  : own_blocks(cut, group.member, step.pairs))
      sum += worked(block);
  }
  return sum;
}

}  // namespace strait::sequence
