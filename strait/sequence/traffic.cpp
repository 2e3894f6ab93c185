#include "strait/sequence/traffic.h"

#include <fmt/format.h>

#include <numeric>

#include "strait/base/errors.h"

namespace strait::sequence {
namespace {

int64_t sum_of(std::span<const int64_t> tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
}

}  // namespace

Traffic ring_sends(std::span<const int64_t> tokens, int64_t member, const Heads& heads,
                   const ElementBytes& bytes) {
  const size_t at = static_cast<size_t>(member), right = (at + 1) % tokens.size();
  if (tokens.size() == 1) return {};
  const int64_t all = sum_of(tokens), pair = 2 * heads.key_columns();
  const int64_t keys = (all - tokens[right]) * pair * bytes.wire;
  return {keys, keys + (all - tokens[at]) * pair * bytes.sum};
}

Traffic ring_traffic(std::span<const int64_t> tokens, const Heads& heads,
                     const ElementBytes& bytes) {
  Traffic all;
  for (size_t member = 0; member < tokens.size(); ++member)
    all = all + ring_sends(tokens, static_cast<int64_t>(member), heads, bytes);
  return all;
}

Traffic gathered_traffic(std::span<const int64_t> tokens, const Heads& heads,
                         const ElementBytes& bytes, bool keeps_keys) {
  const int64_t others = static_cast<int64_t>(tokens.size()) - 1;
  const int64_t elements = others * sum_of(tokens) * 2 * heads.key_columns();
  return {elements * bytes.wire, elements * (bytes.sum + (keeps_keys ? 0 : bytes.wire))};
}

bool heads_divide(const Heads& heads, int64_t ranks) {
  return heads.queries % ranks == 0 && (heads.keys % ranks == 0 || ranks % heads.keys == 0);
}

int64_t nearest_heads_split(const Heads& heads, int64_t ranks) {
  while (ranks > 1 && !heads_divide(heads, ranks)) --ranks;
  return ranks;
}

Traffic heads_traffic(std::span<const int64_t> tokens, const Heads& heads,
                      const ElementBytes& bytes) {
  const int64_t ranks = static_cast<int64_t>(tokens.size()), all = sum_of(tokens);
  if (!heads_divide(heads, ranks)) {
    throw UserError(fmt::format(
        "{} query heads and {} key heads cannot be spread over {} ranks; nearest: {} ranks",
        heads.queries, heads.keys, ranks, nearest_heads_split(heads, ranks)));
  }
  const int64_t queries = (ranks - 1) * all * 2 * heads.query_columns() / ranks;
  if (heads.keys >= ranks) {
    const int64_t both =
        (queries + (ranks - 1) * all * 2 * heads.key_columns() / ranks) * bytes.wire;
    return {both, both};
  }
  // Every rank needs one whole key head, of which ranks / keys have the same one.
  const int64_t keys = (ranks - 1) * all * 2 * heads.width;
  return {queries * bytes.wire + keys * bytes.wire, queries * bytes.wire + keys * bytes.sum};
}

LevelTraffic ring_levels(std::span<const int64_t> tokens, std::span<const int32_t> ranks,
                         int64_t per_node, const Heads& heads, const ElementBytes& bytes) {
  LevelTraffic levels;
  for (size_t member = 0; member < tokens.size(); ++member) {
    const int32_t right = ranks[(member + 1) % ranks.size()];
    Traffic& level = ranks[member] / per_node == right / per_node ? levels.inside : levels.between;
    level = level + ring_sends(tokens, static_cast<int64_t>(member), heads, bytes);
  }
  return levels;
}

LevelTraffic gathered_levels(std::span<const int64_t> tokens, std::span<const int32_t> ranks,
                             int64_t per_node, const Heads& heads, const ElementBytes& bytes) {
  LevelTraffic levels;
  for (size_t from = 0; from < ranks.size(); ++from)
    for (size_t to = 0; to < ranks.size(); ++to) {
      if (from == to) continue;
      Traffic& level =
          ranks[from] / per_node == ranks[to] / per_node ? levels.inside : levels.between;
      const int64_t pair = 2 * heads.key_columns();  // keys go from their owner, gradients to it
      level = level + Traffic{tokens[from] * pair * bytes.wire, tokens[to] * pair * bytes.sum};
    }
  return levels;
}

}  // namespace strait::sequence
