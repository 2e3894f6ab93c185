#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "strait/base/errors.h"
#include "strait/strategy/sequence/exchange.h"

namespace strait::strategy {

using program::Access;
using program::Op;
using program::Operand;
using program::OpKind;

namespace {

/// Hops of neighbours have different lanes, so that no rank waits to send behind what it receives:
/// those of even ones, of odd ones, and where they are an odd number the last one's.
int lane_of(const std::array<int, 3>& lanes, int64_t hop, int64_t hops) {
  const bool odd_end = hop + 1 == hops && hops % 2 == 1;
  return lanes[odd_end ? 2 : static_cast<size_t>(hop % 2)];
}

}  // namespace

Hops::Hops(draft::Draft& draft, const sequence::RankLayout& layout, const sequence::RankGrid& grid,
           const DocumentAxis& axis, const BlockExtent& extent, Dtype dtype)
    : axis_(axis), groups_(layout.groups), grid_(grid), extent_(extent) {
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (!routed(group)) continue;
    const int64_t size = groups_[group].size, proxies = groups_[group].proxies;
    for (const Hop& hop : hops_of(group)) {
      if (!hop.crosses) continue;
      for (int64_t number = 0; number < size; ++number) {
        const sequence::RoutedRows rows =
            rows_of(group, groups_[group].holder_at(hop.position, number));
        for (int64_t chunk = 0; chunk < rows.chunks(); ++chunk) {
          const auto way = sequence::crossing_of(chunk, proxies, {hop.from, hop.to}, grid_);
          if (chunk % proxies == 0 || (axis_.member != way.from && axis_.member != way.to))
            continue;
          const auto declare = [&](Kind kind, const char* name, Dtype of) {
            const int64_t count = std::min(rows.grain, rows.rows - chunk * rows.grain);
            relays_[{group, kind, number, hop.position, chunk}] = draft::declare(
                draft.program,
                {fmt::format("relayed_{}.{}.{}.{}.{}", name, group, number, hop.position, chunk), 1,
                 of, count * width(group)});
          };
          if (number + 1 < size) declare(Kind::kKeys, "keys", dtype);
          if (number > 0)
            declare(Kind::kGradients, "gradients", value_dtype(BlockValue::kKeyGradient, dtype));
        }
      }
    }
  }
}

sequence::RoutedRows Hops::rows_of(size_t group, int64_t member) const {
  const sequence::RankGroup& ring = groups_[group];
  return sequence::routed_rows(ring.rows_of(member), ring.proxies, ring.pieces);
}

Chunks Hops::declare(draft::Draft& draft, const std::string& name, size_t group, int64_t member,
                     Dtype dtype) const {
  const sequence::RoutedRows rows = rows_of(group, member);
  const int array = draft::declare(draft.program, {name, 1, dtype, rows.rows * width(group)});
  if (!routed(group)) return {{array, {}}};
  program::ValueArray& values = draft.program.arrays[static_cast<size_t>(array)];
  values.count = rows.chunks();
  values.partition.grain = rows.grain * width(group);
  values.joined = true;
  Chunks chunks;
  for (int64_t chunk = 0; chunk < values.count; ++chunk) chunks.push_back({array, {chunk}});
  return chunks;
}

std::vector<Hops::Hop> Hops::hops_of(size_t group) const {
  const sequence::RankGroup& ring = groups_[group];
  std::vector<Hop> hops;
  int64_t crossings = 0;
  for (int64_t position = 0; position < ring.size; ++position) {
    const int64_t from = ring.ranks[static_cast<size_t>(position)],
                  to = ring.ranks[static_cast<size_t>((position + 1) % ring.size)];
    const bool apart = routed(group) || ring.parts > 1;
    const bool crosses = apart && grid_.node_of(from) != grid_.node_of(to);
    crossings += crosses;
    // Inside a node all parts have the same hops, so that these have lanes by their senders.
    const int lane = ring.parts > 1 ? lane_of(axis_.lanes, from % grid_.per_node, grid_.per_node)
                                    : lane_of(axis_.lanes, position, ring.size);
    hops.push_back({position, from, to, crosses, lane});
  }
  int64_t crossing = 0;
  for (Hop& hop : hops)
    if (hop.crosses) hop.lane = lane_of(axis_.crossing_lanes, crossing++, crossings);
  return hops;
}

void Hops::add(const Message& message, std::vector<Op>& ops) const {
  const bool sends = message.from == axis_.member;
  if (!sends && message.to != axis_.member) return;
  ops.push_back(message_op(sends, axis_.axis.group, message.lane, sends ? message.to : message.from,
                           sends ? message.sent : message.received));
  if (sends && message.relayed) ops.push_back(draft::free_op(message.sent));
}

void Hops::pass(size_t group, Kind kind, int64_t number, const Chunks& from, const Chunks& to,
                std::vector<Op>& ops) const {
  const sequence::RankGroup& ring = groups_[group];
  for (const Hop& hop : hops_of(group)) {
    const int64_t chunks =
        routed(group) ? rows_of(group, ring.holder_at(hop.position, number)).chunks() : 1;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const auto at = [&](const Chunks& values, int64_t rank) {
        return axis_.member == rank ? values[static_cast<size_t>(chunk)] : Operand{};
      };
      const Operand sent = at(from, hop.from), received = at(to, hop.to);
      if (!hop.crosses || !routed(group) || chunk % ring.proxies == 0) {
        add({hop.from, hop.to, hop.lane, sent, received}, ops);
        continue;
      }
      const auto way = sequence::crossing_of(chunk, ring.proxies, {hop.from, hop.to}, grid_);
      const auto found = relays_.find({group, kind, number, hop.position, chunk});
      const Operand relay = found == relays_.end() ? Operand{} : Operand{found->second, {}};
      add({hop.from, way.from, axis_.dispatch_lane, sent, relay}, ops);
      add({way.from, way.to, hop.lane, relay, relay, true}, ops);
      add({way.to, hop.to, axis_.combine_lane, relay, received, true}, ops);
    }
  }
}

}  // namespace strait::strategy
