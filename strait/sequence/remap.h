// Moves of tokens between the layout of attention and one with even counts for linear modules.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strait/sequence/plan.h"
#include "strait/sequence/price.h"
#include "strait/sequence/traffic.h"

namespace strait::sequence {

/// Rows [from_row, from_row + tokens) of rank `from` become rows [to_row, ...) of rank `to`.
struct Move {
  int32_t from = 0, to = 0;
  int64_t tokens = 0, from_row = 0, to_row = 0;
};

struct Remap {
  std::vector<int64_t> targets;  // tokens of every rank behind it
  std::vector<Move> moves;       // ordered by (from, from_row)
  int64_t moved_tokens() const;
};

/// Targets are floor or ceil of the mean, the larger ones at the ranks of largest surplus, so that
/// the fewest tokens move. Surplus meets deficit inside runs of `level_sizes[0]` ranks first, then
/// in runs of `level_sizes[0] x level_sizes[1]`, and so on outwards: every border of a run is
/// crossed by the least flow, which is optimal for costs that grow by level. A rank gives its last
/// rows and keeps the others where they are. Cost: O(ranks x levels + moves).
Remap make_remap(std::span<const int64_t> tokens, std::span<const int64_t> level_sizes);

/// That of a plan's attention, inside its nodes first. Without moves unless the plan remaps.
Remap remap_of(const Plan& plan);

/// Numbers of a moved token in a layer's forward, and as many in its backward, where gradients go
/// the other way: queries, keys and values to where it is attended and the result back, 2h + 2k; or
/// the residual stream both ways, 2 of its width.
int64_t moved_numbers(Remapping remapping, const Layer& layer);
/// Bytes of one layer's moves, exact.
LevelTraffic remap_traffic(const Plan& plan, const Layer& layer);

/// What a rank holds behind the moves. Reads its rows of attention and those of ranks that give to
/// it.
std::vector<Held> linear_rows(const Layout& attention, const Remap& remap, int64_t rank);
/// What every rank holds behind the moves, and before them.
Layout linear_layout(const Layout& attention, const Remap& remap);
Layout inverse_layout(const Layout& linear, const Remap& remap);

}  // namespace strait::sequence
