#include "strait/sequence/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <tuple>

#include "strait/base/errors.h"
#include "strait/base/random.h"
#include "strait/sequence/routing.h"

namespace strait::sequence {

const char* zone_name(Zone zone) {
  return zone == Zone::kLocal ? "local" : zone == Zone::kIntra ? "intra" : "inter";
}

const char* engine_name(Engine engine) {
  return engine == Engine::kRing ? "ring" : engine == Engine::kGathered ? "gathered" : "heads";
}

const char* remapping_name(Remapping remapping) {
  return remapping == Remapping::kNone ? "none" : remapping == Remapping::kQkv ? "qkv" : "residual";
}

namespace {

/// Zone, first rank and size of a group that has documents, in the order of ids.
uint64_t order_of(const Group& group) {
  return (static_cast<uint64_t>(Zone::kInter) - static_cast<uint64_t>(group.zone)) << 60 |
         static_cast<uint64_t>(group.ranks.front()) << 28 | group.ranks.size();
}

bool travel_together(const Group& a, const Group& b) {
  return a.zone == b.zone && a.engine == b.engine && a.ranks == b.ranks;
}

}  // namespace

void finish_groups(Plan& plan) {
  std::vector<std::pair<uint64_t, Group*>> order;
  for (Group& group : plan.groups)
    if (!group.documents.empty()) order.emplace_back(order_of(group), &group);
  std::ranges::sort(order, [](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return std::tie(a.second->ranks, a.second->engine) <
           std::tie(b.second->ranks, b.second->engine);
  });
  std::vector<Group> groups;
  groups.reserve(order.size());
  for (const auto& [number, group] : order) {
    if (!groups.empty() && travel_together(groups.back(), *group))
      std::ranges::copy(group->documents, std::back_inserter(groups.back().documents));
    else
      groups.push_back(std::move(*group));
  }
  for (Group& group : groups) std::sort(group.documents.begin(), group.documents.end());
  plan.groups = std::move(groups);
}

Layout attention_layout(const Plan& plan) {
  std::vector<int32_t> all(static_cast<size_t>(plan.grid.ranks()));
  std::iota(all.begin(), all.end(), 0);
  return attention_layout(plan, all);
}

Layout attention_layout(const Plan& plan, std::span<const int32_t> ranks) {
  Layout layout(static_cast<size_t>(plan.grid.ranks()));
  std::vector<bool> wanted(layout.size(), false);
  for (const int32_t rank : ranks) wanted[static_cast<size_t>(rank)] = true;
  for (const Group& group : plan.groups)
    for (int64_t member = 0; member < std::ssize(group.ranks); ++member) {
      const auto rank = static_cast<size_t>(group.ranks[static_cast<size_t>(member)]);
      if (!wanted[rank]) continue;
      for (const int32_t document : group.documents)
        for (const Span& span :
             Cut{plan.lengths[static_cast<size_t>(document)], std::ssize(group.ranks)}.spans(
                 member))
          layout[rank].push_back({document, span});
    }
  return layout;
}

namespace {

/// Where `counts` holds for the group.
template <class Counts>
std::vector<Load> loads_where(const Plan& plan, const Counts& counts) {
  std::vector<Load> all(static_cast<size_t>(plan.grid.ranks()));
  for (const Group& group : plan.groups) {
    if (!counts(group)) continue;
    const int64_t ring = static_cast<int64_t>(group.ranks.size());
    const int64_t neighbours = head_ranks_of(plan, group);
    for (const int32_t document : group.documents) {
      const int64_t length = plan.lengths[static_cast<size_t>(document)];
      const Cut cut{length, ring}, of_runs{length, ring / neighbours};
      for (int64_t member = 0; member < ring; ++member) {
        Load& load = all[static_cast<size_t>(group.ranks[static_cast<size_t>(member)])];
        load.tokens += cut.tokens(member);
        const int64_t pairs = of_runs.pairs(member / neighbours), place = member % neighbours;
        load.pairs += pairs / neighbours + (place < pairs % neighbours ? 1 : 0);
      }
    }
  }
  return all;
}

}  // namespace

std::vector<Load> loads(const Plan& plan) {
  return loads_where(plan, [](const Group&) { return true; });
}

std::vector<Load> loads_of_zone(const Plan& plan, Zone zone) {
  return loads_where(plan, [zone](const Group& group) { return group.zone == zone; });
}

uint64_t plan_hash(const Plan& plan) {
  uint64_t hash = 0;
  const auto add = [&](uint64_t value) { hash = mix64(hash ^ value); };
  const auto add_all = [&](const auto& values) {
    add(values.size());
    for (const auto value : values) add(static_cast<uint64_t>(value));
  };
  add(static_cast<uint64_t>(plan.grid.nodes));
  add(static_cast<uint64_t>(plan.grid.per_node));
  add_all(plan.lengths);
  add((plan.fills ? 1 : 0) + 2 * static_cast<uint64_t>(plan.remapping));
  add(static_cast<uint64_t>(plan.proxies));
  add(static_cast<uint64_t>(plan.pieces));
  add(static_cast<uint64_t>(plan.rotations));
  add(static_cast<uint64_t>(plan.head_ranks));
  add(static_cast<uint64_t>(plan.row_split));
  add(plan.groups.size());
  for (const Group& group : plan.groups) {
    add(static_cast<uint64_t>(group.zone) * 16 + static_cast<uint64_t>(group.engine));
    add_all(group.ranks);
    add_all(group.documents);
  }
  return hash;
}

std::string summary(const Plan& plan) {
  std::array<int64_t, 3> zones{};
  for (const Group& group : plan.groups)
    zones[static_cast<size_t>(group.zone)] += static_cast<int64_t>(group.documents.size());
  const std::vector<Load> all = loads(plan);
  const auto by = [&](auto member) {
    const auto [low, high] =
        std::minmax_element(all.begin(), all.end(),
                            [&](const Load& a, const Load& b) { return a.*member < b.*member; });
    return std::pair((*low).*member, (*high).*member);
  };
  const auto [fewest, most] = by(&Load::tokens);
  const auto [light, heavy] = by(&Load::pairs);
  return fmt::format(
      "{} documents local, {} inside nodes, {} between nodes; tokens per rank {} to {}, pairs {} "
      "to {}",
      zones[0], zones[1], zones[2], fewest, most, light, heavy);
}

void check_lengths(std::span<const int64_t> lengths) {
  for (size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] < 1)
      throw UserError(
          fmt::format("data.path: document {} of the batch has {} tokens; at least 1 is needed", i,
                      lengths[i]));
}

}  // namespace strait::sequence
