#include "strait/sequence/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "strait/sequence/remap.h"

namespace strait::sequence {
namespace {

std::vector<int64_t> tokens_of(const Plan& plan, const Group& group) {
  std::vector<int64_t> tokens;
  const int64_t ring = static_cast<int64_t>(group.ranks.size());
  for (int64_t member = 0; member < ring; ++member) {
    int64_t sum = 0;
    for (const int32_t document : group.documents)
      sum += Cut{plan.lengths[static_cast<size_t>(document)], ring}.tokens(member);
    tokens.push_back(sum);
  }
  return tokens;
}

/// Each rank sends as much to every other one.
LevelTraffic heads_levels(std::span<const int64_t> tokens, const Group& group, const RankGrid& grid,
                          const Layer& layer) {
  const Traffic all = heads_traffic(tokens, layer.heads, layer.bytes);
  const int64_t ranks = static_cast<int64_t>(tokens.size());
  int64_t pairs = 0;
  for (const int32_t from : group.ranks)
    for (const int32_t to : group.ranks) pairs += grid.node_of(from) != grid.node_of(to);
  const auto share = [&](int64_t bytes) {
    return ranks > 1 ? bytes * pairs / (ranks * (ranks - 1)) : 0;
  };
  const Traffic between{share(all.forward), share(all.backward)};
  return {{all.forward - between.forward, all.backward - between.backward}, between};
}

/// Of the heads whose keys go around in one order: ranks and the tokens whose keys they begin with,
/// in this order.
struct RingPart {
  Heads heads;
  std::vector<int32_t> ranks;
  std::vector<int64_t> tokens;
};

std::vector<RingPart> parts_of(const Plan& plan, const Group& group, const Heads& heads) {
  const std::vector<int64_t> tokens = tokens_of(plan, group);
  const int64_t neighbours = head_ranks_of(plan, group);
  if (!is_rotated(plan, group) && neighbours == 1) return {{heads, group.ranks, tokens}};
  std::vector<RingPart> parts;
  for (int64_t number = 0; neighbours > 1 && number < neighbours; ++number) {
    RingPart part{{heads.queries / neighbours, heads.keys / neighbours, heads.width}, {}, {}};
    for (auto run = tokens.begin(); run != tokens.end(); run += neighbours) {
      part.ranks.push_back(group.ranks[static_cast<size_t>(run - tokens.begin() + number)]);
      part.tokens.push_back(std::accumulate(run, run + neighbours, int64_t{0}));
    }
    parts.push_back(std::move(part));
  }
  if (neighbours > 1) return parts;
  for (int64_t number = 0; number < plan.rotations; ++number) {
    const KeyHeads keys = key_heads_of(number, plan.rotations, heads.keys);
    RingPart part{{heads.queries / heads.keys * keys.size(), keys.size(), heads.width}, {}, {}};
    for (const int32_t member :
         rotated_members(std::ssize(tokens), plan.grid.per_node, number, plan.rotations)) {
      part.ranks.push_back(group.ranks[static_cast<size_t>(member)]);
      part.tokens.push_back(tokens[static_cast<size_t>(member)]);
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

/// What goes to proxies and comes from them: of each crossing hop, in both nodes.
Traffic dispatched(const Plan& plan, const RingPart& part, const ElementBytes& bytes) {
  const int64_t size = std::ssize(part.ranks), columns = 2 * part.heads.key_columns();
  Traffic all;
  for (int64_t member = 0; member < size; ++member) {
    const auto rank = [&](int64_t at) { return part.ranks[static_cast<size_t>(at % size)]; };
    if (plan.grid.node_of(rank(member)) == plan.grid.node_of(rank(member + 1))) continue;
    for (int64_t number = 0; number < size; ++number) {
      const auto rows = part.tokens[static_cast<size_t>((member + size - number) % size)];
      const int64_t moved =
          rows == 0 ? 0 : 2 * columns * routed_rows(rows, plan.proxies, plan.pieces).dispatched();
      if (number + 1 < size)  // keys in both phases
        all = all + Traffic{moved * bytes.wire, moved * bytes.wire};
      if (number > 0) all = all + Traffic{0, moved * bytes.sum};
    }
  }
  return all;
}

/// Between the neighbours of every run, which are in one node.
Traffic exchanged(const Plan& plan, const Group& group, const Layer& layer) {
  const std::vector<int64_t> tokens = tokens_of(plan, group);
  const auto neighbours = static_cast<size_t>(head_ranks_of(plan, group));
  Traffic all;
  for (size_t first = 0; neighbours > 1 && first < tokens.size(); first += neighbours)
    all =
        all + heads_traffic(std::span(tokens).subspan(first, neighbours), layer.heads, layer.bytes);
  return all;
}

LevelTraffic group_traffic(const Plan& plan, const Group& group, const Layer& layer) {
  const std::vector<int64_t> tokens = tokens_of(plan, group);
  switch (group.engine) {
    case Engine::kRing: {
      LevelTraffic levels;
      for (const RingPart& part : parts_of(plan, group, layer.heads)) {
        const LevelTraffic more =
            ring_levels(part.tokens, part.ranks, plan.grid.per_node, part.heads, layer.bytes);
        levels = {levels.inside + more.inside, levels.between + more.between};
        if (is_routed(plan, group))
          levels.inside = levels.inside + dispatched(plan, part, layer.bytes);
      }
      levels.inside = levels.inside + exchanged(plan, group, layer);
      return levels;
    }
    case Engine::kGathered:
      return gathered_levels(tokens, group.ranks, plan.grid.per_node, layer.heads, layer.bytes);
    case Engine::kHeads:
      break;
  }
  return heads_levels(tokens, group, plan.grid, layer);
}

Json traffic_json(const Traffic& traffic, int64_t layers) {
  return Json::object(
      {{"forward", layers * traffic.forward}, {"backward", layers * traffic.backward}});
}

int64_t both_ways(const Json& traffic) {
  return traffic.at("forward").as_integer() + traffic.at("backward").as_integer();
}

template <class Member>
Json range_json(const std::vector<Load>& all, Member member) {
  const auto [low, high] = std::minmax_element(
      all.begin(), all.end(), [&](const Load& a, const Load& b) { return a.*member < b.*member; });
  return Json::object({{"least", (*low).*member}, {"most", (*high).*member}});
}

}  // namespace

LevelTraffic plan_traffic(const Plan& plan, const Layer& layer) {
  LevelTraffic all;
  for (const Group& group : plan.groups) {
    const LevelTraffic more = group_traffic(plan, group, layer);
    all = {all.inside + more.inside, all.between + more.between};
  }
  return all;
}

namespace {

/// What the ranks of a ring send to other nodes, each hop over proxies where the plan has some.
void add_ring(const Plan& plan, const Group& group, const Layer& layer,
              std::vector<int64_t>& bytes) {
  const bool routed = is_routed(plan, group);
  for (const RingPart& part : parts_of(plan, group, layer.heads))
    for (int64_t at = 0, size = std::ssize(part.ranks); at < size; ++at) {
      const Crossing hop{part.ranks[static_cast<size_t>(at)],
                         part.ranks[static_cast<size_t>((at + 1) % size)]};
      if (plan.grid.node_of(hop.from) == plan.grid.node_of(hop.to)) continue;
      if (!routed) {
        const Traffic sent = ring_sends(part.tokens, at, part.heads, layer.bytes);
        bytes[static_cast<size_t>(hop.from)] += sent.forward + sent.backward;
        continue;
      }
      for (int64_t number = 0; number < size; ++number) {
        const int64_t rows = part.tokens[static_cast<size_t>((at + size - number) % size)];
        const int64_t of_row =
            2 * part.heads.key_columns() *
            ((number + 1 < size ? 2 * layer.bytes.wire : 0) + (number > 0 ? layer.bytes.sum : 0));
        const RoutedRows chunks = routed_rows(rows, plan.proxies, plan.pieces);
        for (int64_t chunk = 0; rows > 0 && chunk < chunks.chunks(); ++chunk)
          bytes[static_cast<size_t>(crossing_of(chunk, plan.proxies, hop, plan.grid).from)] +=
              of_row * std::min(chunks.grain, rows - chunk * chunks.grain);
      }
    }
}

}  // namespace

std::vector<int64_t> bytes_over_links(const Plan& plan, const Layer& layer) {
  std::vector<int64_t> bytes(static_cast<size_t>(plan.grid.ranks()), 0);
  for (const Group& group : plan.groups) {
    if (group.zone != Zone::kInter) continue;
    if (group.engine == Engine::kRing) {
      add_ring(plan, group, layer, bytes);
      continue;
    }
    const Traffic between = group_traffic(plan, group, layer).between;
    const int64_t all = between.forward + between.backward;
    for (const int32_t rank : group.ranks)
      bytes[static_cast<size_t>(rank)] += all / std::ssize(group.ranks);
  }
  // Of the four transfers of a moved token each side sends two, which are as large together.
  const int64_t of_token = moved_numbers(plan.remapping, layer) * layer.bytes.wire;
  for (const Move& move : remap_of(plan).moves)
    if (plan.grid.node_of(move.from) != plan.grid.node_of(move.to))
      for (const int32_t rank : {move.from, move.to})
        bytes[static_cast<size_t>(rank)] += move.tokens * of_token;
  return bytes;
}

std::vector<int64_t> bytes_between_nodes(const Plan& plan, const Layer& layer) {
  std::vector<int64_t> bytes(static_cast<size_t>(plan.grid.nodes), 0);
  const std::vector<int64_t> of_ranks = bytes_over_links(plan, layer);
  for (int64_t rank = 0; rank < plan.grid.ranks(); ++rank)
    bytes[static_cast<size_t>(plan.grid.node_of(rank))] += of_ranks[static_cast<size_t>(rank)];
  return bytes;
}

namespace {

double slowest_over_mean(const std::vector<int64_t>& tokens) {
  const double sum = static_cast<double>(std::accumulate(tokens.begin(), tokens.end(), int64_t{0}));
  const double most = static_cast<double>(*std::ranges::max_element(tokens));
  return sum > 0 ? most * static_cast<double>(tokens.size()) / sum : 1;
}

/// What linear modules have to do, and what it costs to make it even.
Json linear_json(const Plan& plan, const Layer& layer, const Price& price, int64_t layers) {
  const Remap remap = remap_of(plan);
  const LevelTraffic traffic = remap_traffic(plan, layer);
  std::vector<int64_t> attended;
  for (const Load& load : loads(plan)) attended.push_back(load.tokens);
  return Json::object({{"remapped", plan.remapping != Remapping::kNone},
                       {"remap", remapping_name(plan.remapping)},
                       {"moved_tokens", remap.moved_tokens()},
                       {"slowest_over_mean_of_attention", slowest_over_mean(attended)},
                       {"slowest_over_mean", slowest_over_mean(remap.targets)},
                       {"bytes_inside_nodes", traffic_json(traffic.inside, layers)},
                       {"bytes_between_nodes", traffic_json(traffic.between, layers)},
                       {"predicted_seconds", static_cast<double>(layers) * price.linear_slowest},
                       {"predicted_remap_seconds", static_cast<double>(layers) * price.remap}});
}

/// Which documents' neighbours exchange heads.
Json heads_json(const Plan& plan) {
  int64_t documents = 0;
  for (const Group& group : plan.groups)
    if (head_ranks_of(plan, group) > 1) documents += std::ssize(group.documents);
  return Json::object({{"ranks", plan.head_ranks}, {"documents", documents}});
}

Json zone_json(const Plan& plan, Zone zone) {
  std::vector<int64_t> tokens, pairs;
  for (const Load& load : loads_of_zone(plan, zone)) {
    tokens.push_back(load.tokens);
    pairs.push_back(load.pairs);
  }
  return Json::object({{"tokens", tokens}, {"pairs", pairs}});
}

}  // namespace

Json plan_json(const Plan& plan, const Layer& layer, const Price& price, int64_t layers) {
  std::array<int64_t, 3> zones{};
  for (const Group& group : plan.groups)
    zones[static_cast<size_t>(group.zone)] += static_cast<int64_t>(group.documents.size());
  Json documents = Json::object();
  for (const Zone zone : {Zone::kLocal, Zone::kIntra, Zone::kInter})
    documents[zone_name(zone)] = zones[static_cast<size_t>(zone)];
  const std::vector<Load> all = loads(plan);
  Json ranks = Json::object();
  for (const Zone zone : {Zone::kLocal, Zone::kIntra, Zone::kInter})
    ranks[zone_name(zone)] = zone_json(plan, zone);
  const LevelTraffic traffic = plan_traffic(plan, layer);
  std::vector<int64_t> leaving = bytes_between_nodes(plan, layer);
  for (int64_t& bytes : leaving) bytes *= layers;
  std::vector<int64_t> over_links = bytes_over_links(plan, layer);
  for (int64_t& bytes : over_links) bytes *= layers;
  const auto seconds = [&](double of_layer) { return static_cast<double>(layers) * of_layer; };
  return Json::object(
      {{"lengths", plan.lengths},
       {"documents", documents},
       {"tokens", range_json(all, &Load::tokens)},
       {"pairs", range_json(all, &Load::pairs)},
       {"ranks", ranks},
       {"bytes_inside_nodes", traffic_json(traffic.inside, layers)},
       {"bytes_between_nodes", traffic_json(traffic.between, layers)},
       {"bytes_leaving_nodes", leaving},
       {"bytes_leaving_ranks", over_links},
       {"predicted", Json::object({{"slowest_seconds", seconds(price.attention_slowest)},
                                   {"mean_seconds", seconds(price.attention_mean)},
                                   {"computing_slowest_seconds", seconds(price.computing_slowest)},
                                   {"computing_mean_seconds", seconds(price.computing_mean)},
                                   {"layers_seconds", seconds(price.layer())}})},
       {"routing",
        Json::object(
            {{"proxies", plan.proxies}, {"pieces", plan.pieces}, {"rotations", plan.rotations}})},
       {"heads", heads_json(plan)},
       {"linear", linear_json(plan, layer, price, layers)},
       {"hash", fmt::format("{:016x}", plan_hash(plan))}});
}

std::string plan_text(const Json& plan) {
  const Json &documents = plan.at("documents"), &predicted = plan.at("predicted");
  const auto range = [&](const char* of) {
    return fmt::format("{} to {}", plan.at(of).at("least").as_integer(),
                       plan.at(of).at("most").as_integer());
  };
  const auto megabytes = [&](const char* of) {
    return static_cast<double>(both_ways(plan.at(of))) / 1e6;
  };
  std::string text;
  if (const Json* rows = plan.find("rows"); rows != nullptr && rows->as_integer() > 1)
    text = fmt::format("row {} of {}: ", plan.at("row").as_integer(), rows->as_integer());
  text += fmt::format(
      "{} documents local, {} inside nodes, {} between nodes; of a rank {} tokens, {} pairs; "
      "{:.4g} "
      "MB inside nodes, {:.4g} MB between; attention predicted {:.4g} s (mean {:.4g} s), of it "
      "computing {:.4g} s (mean {:.4g} s)",
      documents.at("local").as_integer(), documents.at("intra").as_integer(),
      documents.at("inter").as_integer(), range("tokens"), range("pairs"),
      megabytes("bytes_inside_nodes"), megabytes("bytes_between_nodes"),
      predicted.at("slowest_seconds").as_number(), predicted.at("mean_seconds").as_number(),
      predicted.at("computing_slowest_seconds").as_number(),
      predicted.at("computing_mean_seconds").as_number());
  if (const Json* measured = plan.find("measured"))
    text += fmt::format(", measured {:.4g} s (mean {:.4g} s)",
                        measured->at("computing_slowest_seconds").as_number(),
                        measured->at("computing_mean_seconds").as_number());
  if (const Json& heads = plan.at("heads"); heads.at("ranks").as_integer() > 1)
    text += fmt::format("; heads of {} documents exchanged among {} ranks",
                        heads.at("documents").as_integer(), heads.at("ranks").as_integer());
  const Json& linear = plan.at("linear");
  const auto slowest = [&](const char* of) { return linear.at(of).as_number(); };
  if (linear.at("remapped").as_bool())
    text +=
        fmt::format("; {} tokens remapped ({}): slowest over mean linear tokens {:.3f}, of {:.3f}",
                    linear.at("moved_tokens").as_integer(), linear.at("remap").as_string(),
                    slowest("slowest_over_mean"), slowest("slowest_over_mean_of_attention"));
  else
    text += fmt::format("; slowest over mean linear tokens {:.3f}", slowest("slowest_over_mean"));
  return text;
}

std::string find_disagreement(std::span<const uint64_t> hash_of_rank) {
  std::map<uint64_t, int64_t> count;
  for (const uint64_t hash : hash_of_rank) ++count[hash];
  if (count.size() < 2) return "";
  uint64_t common = hash_of_rank.front();
  for (const uint64_t hash : hash_of_rank)
    if (count[hash] > count[common]) common = hash;
  std::string ranks;
  int64_t others = 0;
  for (size_t rank = 0; rank < hash_of_rank.size(); ++rank) {
    if (hash_of_rank[rank] == common) continue;
    if (++others <= 8) ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", rank);
  }
  if (others > 8) ranks += fmt::format(" and {} more", others - 8);
  return fmt::format(
      "{} {} {} planned another batch than the other {}: the lengths of its documents or the "
      "options differ",
      others == 1 ? "rank" : "ranks", ranks, others == 1 ? "has" : "have",
      static_cast<int64_t>(hash_of_rank.size()) - others);
}

}  // namespace strait::sequence
