#include "strait/sequence/remap.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "strait/base/errors.h"

namespace strait::sequence {
namespace {

/// Targets of the fewest moved tokens.
std::vector<int64_t> even_targets(std::span<const int64_t> tokens) {
  const int64_t ranks = static_cast<int64_t>(tokens.size());
  const int64_t all = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  std::vector<int64_t> targets(tokens.size(), all / ranks);
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return tokens[a] > tokens[b]; });
  for (int64_t i = 0; i < all % ranks; ++i) ++targets[order[static_cast<size_t>(i)]];
  return targets;
}

struct Pending {
  std::vector<int64_t> surplus;  // above 0: to give; below: to take
  std::vector<Move>& moves;

  /// Matches what is left inside ranks [begin, end).
  void match(size_t begin, size_t end) {
    size_t giver = begin;
    for (size_t taker = begin; taker < end; ++taker)
      while (surplus[taker] < 0) {
        while (giver < end && surplus[giver] <= 0) ++giver;
        if (giver == end) return;
        const int64_t tokens = std::min(surplus[giver], -surplus[taker]);
        moves.push_back({static_cast<int32_t>(giver), static_cast<int32_t>(taker), tokens});
        surplus[giver] -= tokens;
        surplus[taker] += tokens;
      }
  }
};

/// Rows [begin, begin + count) of what a rank holds.
std::vector<Held> rows_of(const std::vector<Held>& rows, int64_t begin, int64_t count) {
  std::vector<Held> found;
  for (const Held& held : rows) {
    const int64_t size = held.span.size();
    const int64_t from = std::clamp<int64_t>(begin, 0, size);
    const int64_t to = std::clamp<int64_t>(begin + count, 0, size);
    if (from < to) found.push_back({held.document, {held.span.begin + from, held.span.begin + to}});
    begin -= size;
  }
  return found;
}

/// Appends, and joins what continues the last run.
void append(std::vector<Held>& rows, const std::vector<Held>& more) {
  for (const Held& held : more) {
    if (!rows.empty() && rows.back().document == held.document &&
        rows.back().span.end == held.span.begin) {
      rows.back().span.end = held.span.end;
    } else {
      rows.push_back(held);
    }
  }
}

int64_t count_of(const std::vector<Held>& rows) {
  int64_t tokens = 0;
  for (const Held& held : rows) tokens += held.span.size();
  return tokens;
}

}  // namespace

int64_t Remap::moved_tokens() const {
  int64_t sum = 0;
  for (const Move& move : moves) sum += move.tokens;
  return sum;
}

Remap make_remap(std::span<const int64_t> tokens, std::span<const int64_t> level_sizes) {
  Remap remap{even_targets(tokens), {}};
  Pending pending{{tokens.begin(), tokens.end()}, remap.moves};
  for (size_t rank = 0; rank < tokens.size(); ++rank) pending.surplus[rank] -= remap.targets[rank];
  size_t run = 1;
  for (const int64_t size : level_sizes) {
    run *= static_cast<size_t>(size);
    for (size_t begin = 0; begin < tokens.size(); begin += run)
      pending.match(begin, std::min(begin + run, tokens.size()));
  }
  pending.match(0, tokens.size());
  std::stable_sort(remap.moves.begin(), remap.moves.end(),
                   [](const Move& a, const Move& b) { return a.from < b.from; });
  std::vector<int64_t> given(remap.targets), taken(tokens.begin(), tokens.end());
  for (Move& move : remap.moves) {
    int64_t& from_row = given[static_cast<size_t>(move.from)];
    int64_t& to_row = taken[static_cast<size_t>(move.to)];
    move.from_row = std::exchange(from_row, from_row + move.tokens);
    move.to_row = std::exchange(to_row, to_row + move.tokens);
  }
  return remap;
}

Remap remap_of(const Plan& plan) {
  std::vector<int64_t> tokens;
  for (const Load& load : loads(plan)) tokens.push_back(load.tokens);
  if (plan.remapping == Remapping::kNone) return {std::move(tokens), {}};
  return make_remap(tokens, std::vector<int64_t>{plan.grid.per_node, plan.grid.nodes});
}

int64_t moved_numbers(Remapping remapping, const Layer& layer) {
  switch (remapping) {
    case Remapping::kNone:
      break;
    case Remapping::kQkv:
      return 2 * layer.heads.query_columns() + 2 * layer.heads.key_columns();
    case Remapping::kResidual:
      return 2 * layer.stream_columns;
  }
  return 0;
}

LevelTraffic remap_traffic(const Plan& plan, const Layer& layer) {
  const int64_t of_token = moved_numbers(plan.remapping, layer) * layer.bytes.wire;
  LevelTraffic all;
  for (const Move& move : remap_of(plan).moves) {
    const bool inside = plan.grid.node_of(move.from) == plan.grid.node_of(move.to);
    Traffic& level = inside ? all.inside : all.between;
    level = level + Traffic{move.tokens * of_token, move.tokens * of_token};
  }
  return all;
}

std::vector<Held> linear_rows(const Layout& attention, const Remap& remap, int64_t rank) {
  const auto at = static_cast<size_t>(rank);
  std::vector<Held> rows = rows_of(attention[at], 0, remap.targets[at]);
  for (const Move& move : remap.moves) {
    if (move.to != rank) continue;
    ensure(count_of(rows) == move.to_row, "a remap leaves a hole");
    append(rows, rows_of(attention[static_cast<size_t>(move.from)], move.from_row, move.tokens));
  }
  return rows;
}

Layout linear_layout(const Layout& attention, const Remap& remap) {
  Layout linear;
  for (int64_t rank = 0; rank < std::ssize(attention); ++rank)
    linear.push_back(linear_rows(attention, remap, rank));
  return linear;
}

Layout inverse_layout(const Layout& linear, const Remap& remap) {
  std::vector<int64_t> kept;
  for (const std::vector<Held>& rows : linear) kept.push_back(count_of(rows));
  for (const Move& move : remap.moves) kept[static_cast<size_t>(move.to)] -= move.tokens;
  Layout attention(linear.size());
  for (size_t rank = 0; rank < linear.size(); ++rank)
    attention[rank] = rows_of(linear[rank], 0, kept[rank]);
  for (const Move& move : remap.moves) {
    std::vector<Held>& from = attention[static_cast<size_t>(move.from)];
    ensure(count_of(from) == move.from_row, "a remap leaves a hole");
    append(from, rows_of(linear[static_cast<size_t>(move.to)], move.to_row, move.tokens));
  }
  return attention;
}

}  // namespace strait::sequence
