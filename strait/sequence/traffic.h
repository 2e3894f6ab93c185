// Exact bytes that attention over several ranks moves, per layer, for uneven counts of tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace strait::sequence {

struct Heads {
  int64_t queries = 1, keys = 1, width = 1;  // keys divides queries
  int64_t query_columns() const { return queries * width; }
  int64_t key_columns() const { return keys * width; }
};
/// Of an element on the wire, and of a sum of gradients.
struct ElementBytes {
  int64_t wire = 2, sum = 4;
};
struct Traffic {
  int64_t forward = 0, backward = 0;
  Traffic operator+(const Traffic& other) const {
    return {forward + other.forward, backward + other.backward};
  }
  bool operator==(const Traffic&) const = default;
};

/// What a member sends to its right neighbour, `tokens` being those of every member: the keys and
/// values of all members but that neighbour; backward the same again, and the sums of their
/// gradients of all members but itself, as a sum begins at the first member that is visited.
Traffic ring_sends(std::span<const int64_t> tokens, int64_t member, const Heads& heads,
                   const ElementBytes& bytes);
/// Of all members: (g - 1) s 2k e forward, (g - 1) s 2k (e + a) backward.
Traffic ring_traffic(std::span<const int64_t> tokens, const Heads& heads,
                     const ElementBytes& bytes);

/// All-gather of keys and values, reduce-scatter of their gradients; `keeps_keys`: the backward
/// finds what the forward gathered. Each member sends its part to each other one.
Traffic gathered_traffic(std::span<const int64_t> tokens, const Heads& heads,
                         const ElementBytes& bytes, bool keeps_keys = true);

/// Whether all-to-alls can give each of `ranks` whole heads: it divides the query heads, and it
/// divides the key heads or they divide it.
bool heads_divide(const Heads& heads, int64_t ranks);
/// The largest count of at most `ranks` that does.
int64_t nearest_heads_split(const Heads& heads, int64_t ranks);
/// All-to-all from tokens to heads and back. UserError unless heads_divide.
Traffic heads_traffic(std::span<const int64_t> tokens, const Heads& heads,
                      const ElementBytes& bytes);

/// All-to-all of one number per token and query head, in the width of sums: delta of attention's
/// backward, in place of results kept twice.
Traffic delta_traffic(std::span<const int64_t> tokens, const Heads& heads,
                      const ElementBytes& bytes);

/// Heads exchanged in groups of `head_ranks` neighbours, and keys on rings across them, one for the
/// heads of each member of a group, which attends to the tokens of all. UserError unless
/// head_ranks divides the key heads; it divides the ranks.
struct HeadsRingTraffic {
  Traffic exchanged, ring, deltas;  // deltas: delta_traffic of the groups
};
HeadsRingTraffic heads_ring_traffic(std::span<const int64_t> tokens, int64_t head_ranks,
                                    const Heads& heads, const ElementBytes& bytes);

/// Bytes inside and between nodes of `per_node` ranks.
struct LevelTraffic {
  Traffic inside, between;
};
/// Of a ring whose members are these ranks in this order.
LevelTraffic ring_levels(std::span<const int64_t> tokens, std::span<const int32_t> ranks,
                         int64_t per_node, const Heads& heads, const ElementBytes& bytes);
LevelTraffic gathered_levels(std::span<const int64_t> tokens, std::span<const int32_t> ranks,
                             int64_t per_node, const Heads& heads, const ElementBytes& bytes);

}  // namespace strait::sequence
