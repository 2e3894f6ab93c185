// Rings between nodes whose members are runs of neighbours that exchange heads (Fang & Zhao 2024,
// USP; Gu et al. 2024, LoongTrain): each has some heads of the rows of all, and is with these on a
// ring of one rank of every run.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/sequence/rank_layout.h"

namespace strait::sequence {

/// `count` rows from `own` on of a rank's part of a group are those from `shared` on of all of its
/// run's.
struct SharedRows {
  int64_t own = 0, shared = 0, count = 0;
};
/// Rows of a neighbour among those of its run, which are in the order of documents and positions.
/// In order of both. Cost: O(documents).
std::vector<SharedRows> shared_rows(const RankGroup& group, int64_t neighbour);

/// The ring alone, as if one rank had the rows of the run and no other heads than this one's.
RankLayout ring_layout(const RankGroup& group);

/// The neighbours with which a rank exchanges messages, itself left out, in an order in which no
/// rank waits for one that waits: in turn t those meet whose numbers add up to t modulo their
/// number.
std::vector<int64_t> turns_of(int64_t neighbour, int64_t neighbours);

}  // namespace strait::sequence
