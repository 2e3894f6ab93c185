#include "strait/sequence/traffic.h"

#include <fmt/format.h>

#include <numeric>

#include "strait/base/errors.h"
#include "strait/topology/nearest.h"

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

Traffic delta_traffic(std::span<const int64_t> tokens, const Heads& heads,
                      const ElementBytes& bytes) {
  const int64_t ranks = static_cast<int64_t>(tokens.size());
  return {0, (ranks - 1) * sum_of(tokens) * heads.queries / ranks * bytes.sum};
}

HeadsRingTraffic heads_ring_traffic(std::span<const int64_t> tokens, int64_t head_ranks,
                                    const Heads& heads, const ElementBytes& bytes) {
  const int64_t ranks = static_cast<int64_t>(tokens.size());
  if (heads.keys % head_ranks != 0 || ranks % head_ranks != 0) {
    throw UserError(fmt::format(
        "{} key heads of {} ranks cannot be exchanged in groups of {} ranks; nearest: {} ranks",
        heads.keys, ranks, head_ranks, nearest_divisor(std::gcd(heads.keys, ranks), head_ranks)));
  }
  HeadsRingTraffic traffic;
  std::vector<int64_t> members;
  for (int64_t first = 0; first < ranks; first += head_ranks) {
    const auto group = tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(head_ranks));
    traffic.exchanged = traffic.exchanged + heads_traffic(group, heads, bytes);
    traffic.deltas = traffic.deltas + delta_traffic(group, heads, bytes);
    members.push_back(sum_of(group));
  }
  const Heads own{heads.queries / head_ranks, heads.keys / head_ranks, heads.width};
  for (int64_t member = 0; member < head_ranks; ++member)
    traffic.ring = traffic.ring + ring_traffic(members, own, bytes);
  return traffic;
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
