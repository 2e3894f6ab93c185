// What one rank holds of a plan, and computes: its rows, group by group.
#pragma once

#include <cstdint>
#include <iterator>
#include <vector>

#include "strait/sequence/plan.h"
#include "strait/sequence/routing.h"

namespace strait::sequence {

/// A rank's part of a group: `rows` rows from `first_row` on, those of each document as Cut::spans
/// says, one document behind the other. Where keys go around in several orders each has a part of
/// its own: the same rows of other heads. Where neighbours exchange heads (exchanged_heads.h) the
/// members of the ring are runs of them, and `rows` those that the rank itself has of its run's.
struct RankGroup {
  int64_t size = 1, member = 0;
  int32_t before = 0, next = 0;  // ranks: neighbours in the ring
  int64_t first_row = 0, rows = 0;
  std::vector<int64_t> lengths = {};     // of the documents
  std::vector<int32_t> ranks = {};       // in ring order
  std::vector<int32_t> members = {};     // likewise: which of the chunks they have
  int64_t position = 0;                  // in the ring
  int64_t proxies = 1, pieces = 1;       // of its transfers between nodes: Plan
  int64_t part = 0, parts = 1;           // of its key heads
  std::vector<int32_t> neighbours = {};  // ranks of its run, itself among them; empty: no run
  int64_t neighbour = 0;                 // which of them it is

  int64_t head_ranks() const { return neighbours.empty() ? 1 : std::ssize(neighbours); }
  /// Whose keys are with the rank at a position of the ring in a round: those of the member so many
  /// positions before.
  int64_t holder_at(int64_t position_of, int64_t round) const {
    return members[static_cast<size_t>((position_of + size - round % size) % size)];
  }
  /// With this one.
  int64_t holder(int64_t round) const { return holder_at(position, round); }
  /// How many members before this one that is, in the order of chunks.
  int64_t distance(int64_t round) const { return (member + size - holder(round)) % size; }
  /// Of `all` key heads of a rank: those of a part, or as many as the rank's share of a run's.
  KeyHeads key_heads(int64_t all) const { return key_heads_of(part, parts, all / head_ranks()); }
  Cut cut(size_t document) const { return {lengths[document], size}; }
  /// Of a member of the ring: a rank, or a run.
  int64_t rows_of(int64_t of_member) const;
  /// Of one of the rank's run.
  Cut rank_cut(size_t document) const { return {lengths[document], size * head_ranks()}; }
  int64_t rows_of_neighbour(int64_t of_neighbour) const;
  /// Causal pairs that the rank computes in a round, for its heads.
  int64_t pairs(int64_t round) const;
};

/// One call of attention: a round of one of a rank's groups, in a backward maybe half of round 0.
struct EngineStep {
  int64_t group = 0, round = 0;
  OwnPairs pairs = OwnPairs::kAll;
  /// Whether it is the first of its group.
  bool begins() const { return round == 0 && pairs != OwnPairs::kWithin; }
  bool operator==(const EngineStep&) const = default;
};

/// Rows that attention has here and linear modules on rank `other` (given), or the other way round.
struct MovedRows {
  int32_t other = 0;
  bool given = false;
  int64_t begin = 0, end = 0;
  bool operator==(const MovedRows&) const = default;
};

/// A rank gives its last rows of attention, or takes rows behind its own: rows of attention and
/// rows of linear modules are both the first ones of `positions`, and one buffer holds both.
struct RankLayout {
  /// By id: rings before local documents, which are several groups where a plan fills. At least
  /// one whose ranks attend for all heads of their rows, which may be empty.
  std::vector<RankGroup> groups;
  std::vector<EngineStep> order;  // in which a rank attends: every round of every group once
  /// Likewise in a backward, but for round 0 of rings: one half of it where it stood, the other
  /// one behind all else.
  std::vector<EngineStep> backward_order;
  int64_t attention_rows = 0, linear_rows = 0;
  std::vector<int32_t> positions;  // of rows in their documents
  std::vector<Held> held;          // rows of linear modules: linear_layout
  std::vector<MovedRows> moved;    // in an order that all ranks share
  Remapping remapping = Remapping::kNone;
  /// linear_rows, and behind them those of no document, whose targets are not counted: at least one
  /// row, a multiple of Plan::row_split.
  int64_t rows = 1;

  /// Of the calls for all heads of a rank's own rows, in one of the two orders: the first one
  /// begins what all of these add to, the last one ends it.
  EngineStep first_of_rows(const std::vector<EngineStep>& steps) const;
  EngineStep last_of_rows(const std::vector<EngineStep>& steps) const;

  /// Rows of what attention reads and writes, of which those of no document are zeros.
  int64_t attended_rows() const {
    if (remapping == Remapping::kResidual) return attention_rows > 1 ? attention_rows : 1;
    return attention_rows > rows ? attention_rows : rows;
  }
};

/// The backward's order of a layout that has its groups and its order.
std::vector<EngineStep> backward_order_of(const RankLayout& layout);

/// Rounds of rings by (group, round), the parts of one round one behind the other. Where a plan
/// fills, local documents are cut into as many runs as rings have rounds, of even pairs as far as
/// whole documents allow, and one stands before every round but the first of each ring, the last
/// one at the end. Rings alone: InternalError for another engine. Cost: O(documents of the rank x
/// their groups).
RankLayout rank_layout(const Plan& plan, int64_t rank);

}  // namespace strait::sequence
