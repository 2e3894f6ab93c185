// What attention works on: whole tiles, in which some pairs are not causal.
#pragma once

#include <cstdint>

#include "strait/sequence/rank_layout.h"

namespace strait::sequence {

/// Pairs of queries and keys that kernel::partial_attention multiplies for a step of a group: of
/// each run of queries it takes 64 at a time, to the keys that the last of them attends. Of a whole
/// document of s tokens, s (s + 64) / 2 where 64 divides s, so that a short one costs more than its
/// causal pairs. Cost: O(tokens of the group / 64).
int64_t worked_pairs(const RankGroup& group, const EngineStep& step);

}  // namespace strait::sequence
