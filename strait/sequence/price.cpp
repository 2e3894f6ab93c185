#include "strait/sequence/price.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "strait/base/errors.h"
#include "strait/sequence/remap.h"

namespace strait::sequence {
namespace {

constexpr int64_t kMostPieces = 8;

/// Of a forward.
double pair_flops(const Layer& layer) {
  return 4 * static_cast<double>(layer.heads.query_columns());
}

/// Of one rank, both phases.
struct RankTime {
  double compute = 0;  // split documents
  double local = 0;    // documents of its own
  double waits = 0;
};

/// What one group costs each member.
struct GroupTime {
  double compute = 0, waits = 0, tokens = 0;
};

/// Prices one plan in one way after the other to get keys between nodes: its proxies, pieces,
/// rotations and head_ranks may change, nothing else.
class AttentionPricer {
 public:
  AttentionPricer(const Plan& plan, const Machine& machine, const Layer& layer,
                  const PriceOptions& options)
      : plan_(plan),
        machine_(machine),
        layer_(layer),
        options_(options),
        inside_(static_cast<size_t>(plan.grid.ranks())),
        tokens_(inside_.size(), 0) {
    for (const Group& group : plan_.groups) {
      const GroupTime time = group_time(group);
      for (const int32_t rank : group.ranks) tokens_[static_cast<size_t>(rank)] += time.tokens;
      if (group.zone == Zone::kInter)
        crossing_.push_back(&group);
      else
        add(group, time, inside_);
    }
  }

  /// Of attention, by rank. Shares of a document count as even.
  const std::vector<double>& tokens() const { return tokens_; }

  /// But for linear modules; `seconds`: of every rank.
  Price price(std::vector<double>& seconds) const {
    std::vector<RankTime> times = inside_;
    for (const Group* group : crossing_) add(*group, group_time(*group), times);
    Price price;
    seconds.clear();
    for (const RankTime& time : times) {
      const double computing = time.compute + time.local, all = computing + time.waits;
      seconds.push_back(options_.fills ? all - std::min(time.waits, time.local) : all);
      price.attention_slowest = std::max(price.attention_slowest, seconds.back());
      price.attention_mean += seconds.back() / static_cast<double>(times.size());
      price.computing_slowest = std::max(price.computing_slowest, computing);
      price.computing_mean += computing / static_cast<double>(times.size());
    }
    return price;
  }

 private:
  struct Phase {
    double round_work, tokens, rounds;
    bool backward;
  };

  static void add(const Group& group, const GroupTime& time, std::vector<RankTime>& times) {
    for (const int32_t rank : group.ranks) {
      RankTime& own = times[static_cast<size_t>(rank)];
      (group.ranks.size() == 1 ? own.local : own.compute) += time.compute;
      own.waits += time.waits;
    }
  }

  GroupTime group_time(const Group& group) const {
    const double neighbours = static_cast<double>(head_ranks_of(plan_, group));
    const double members = static_cast<double>(group.ranks.size()) / neighbours;
    double pairs = 0, length = 0;
    for (const int32_t document : group.documents) {
      const double own = static_cast<double>(plan_.lengths[static_cast<size_t>(document)]);
      pairs += machine_.worked_pairs(own, members);
      length += own;
    }
    GroupTime time{.tokens = length / static_cast<double>(group.ranks.size())};
    const double round =
        pair_flops(layer_) / neighbours * pairs / members / machine_.attention_flops;
    const double rounds = group.ranks.size() > 1 ? members - 1 : 0;
    for (const bool backward : {false, true}) {
      const double work = backward ? kBackwardWork * round : round;
      time.compute += members * work;
      if (rounds > 0) time.waits += exposed(group, {work, time.tokens, rounds, backward});
    }
    if (neighbours > 1) time.waits += 2 * exchange(time.tokens, neighbours);
    return time;
  }

  /// Seconds for which compute waits.
  double exposed(const Group& group, const Phase& phase) const {
    const double keys = 2 * static_cast<double>(layer_.heads.key_columns()) * phase.tokens;
    const double wire = static_cast<double>(layer_.bytes.wire),
                 sum = static_cast<double>(layer_.bytes.sum);
    if (group.engine == Engine::kHeads) return heads_transfer(group, phase.tokens);
    if (group.engine == Engine::kGathered) {
      // Groups of heads: the first one's transfer is exposed, the others' overlap.
      const double transfer = phase.rounds * hop(group, keys * (phase.backward ? sum : wire));
      const double work = (phase.rounds + 1) * phase.round_work;
      const double pieces = static_cast<double>(layer_.heads.keys);
      return transfer / pieces + std::max(0.0, (transfer - work) * (pieces - 1) / pieces);
    }
    const auto waits = [&](double bytes, double rounds_of_work = 1) {
      return std::max(0.0, hop(group, keys * bytes) - rounds_of_work * phase.round_work);
    };
    if (!phase.backward) return phase.rounds * waits(wire);
    // Half a round beside the first keys, sums one round behind them, half a round beside the last.
    return waits(wire, 0.5) + (phase.rounds - 1) * waits(wire + sum) + waits(sum, 0.5);
  }

  /// Of a phase: heads of neighbours there and back, `tokens` of each rank, with their copies
  /// before and behind.
  double exchange(double tokens, double neighbours) const {
    const double columns =
        2 * static_cast<double>(layer_.heads.query_columns() + layer_.heads.key_columns());
    const double bytes = tokens * columns * static_cast<double>(layer_.bytes.wire);
    const double rate = machine_.memory_bytes_per_second;
    return machine_.links.inside_byte_seconds * bytes * (neighbours - 1) / neighbours +
           2 * (neighbours - 1) * machine_.links.inside_latency_seconds +
           (rate > 0 ? 4 * bytes / rate : 0);
  }

  /// The slowest hop of a ring round.
  double hop(const Group& group, double bytes) const {
    const RouteLinks& links = machine_.links;
    const double inside = links.inside_byte_seconds * bytes + links.inside_latency_seconds;
    if (group.zone != Zone::kInter) return inside;
    if (const int64_t neighbours = head_ranks_of(plan_, group); neighbours > 1)
      return std::max(neighbours < plan_.grid.per_node ? inside : 0,
                      parallel_seconds(bytes, neighbours, links));
    if (is_rotated(plan_, group))
      return std::max(inside, rotated_route_seconds(bytes, plan_.rotations, layer_.heads.keys,
                                                    {plan_.proxies, plan_.pieces}, links));
    if (is_routed(plan_, group))
      return std::max(inside, route_seconds(bytes, plan_.proxies, plan_.pieces, links));
    const bool plain = plan_.head_ranks == 1;  // every link is in use else
    const int64_t proxies =
        options_.routes && plain ? std::min(machine_.links_of_node, plan_.grid.per_node) : 1;
    double between = best_route(bytes, proxies, kMostPieces, links).seconds;
    if (const int64_t parts =
            best_rotation(bytes, 1, plain ? options_.rotations : 1, layer_.heads.keys, links);
        parts > 1)
      between = std::min(between, rotated_seconds(bytes, parts, layer_.heads.keys, links));
    return std::max(inside, between);
  }

  /// Both all-to-alls; the links of a node carry what its ranks send to other nodes.
  double heads_transfer(const Group& group, double tokens) const {
    const double members = static_cast<double>(group.ranks.size());
    const double columns =
        2 * static_cast<double>(layer_.heads.query_columns() + layer_.heads.key_columns());
    const double bytes = tokens * columns * static_cast<double>(layer_.bytes.wire);
    if (group.zone != Zone::kInter)
      return machine_.links.inside_byte_seconds * bytes * (members - 1) / members;
    const double in_node = static_cast<double>(plan_.grid.per_node);
    return machine_.links.between_byte_seconds * bytes * in_node * (members - in_node) / members /
           static_cast<double>(machine_.links_of_node);
  }

  const Plan& plan_;
  const Machine& machine_;
  const Layer& layer_;
  const PriceOptions& options_;
  std::vector<RankTime> inside_;        // of groups inside nodes
  std::vector<const Group*> crossing_;  // the others
  std::vector<double> tokens_;
};

/// Of the slowest rank.
struct RemapTime {
  double transfers = 0, copies = 0;
};

/// Each rank's moved tokens leave through its own link, between nodes through one of the node's;
/// both directions, forward and backward, a message each way in each phase. Before and behind it
/// stands a copy, which reads and writes what is moved, and on who gives rows of the residual
/// stream's gradient writes zeros in their place.
RemapTime remap_time(const Plan& plan, const std::vector<int64_t>& tokens, const Machine& machine,
                     const Layer& layer, Remapping remapping) {
  const Remap remap = make_remap(tokens, std::vector<int64_t>{plan.grid.per_node, plan.grid.nodes});
  std::vector<double> inside(tokens.size(), 0), outside(tokens.size(), 0);
  std::vector<double> between(static_cast<size_t>(plan.grid.nodes), 0);
  std::vector<double> latencies(tokens.size(), 0), copied(tokens.size(), 0);
  const double wire = static_cast<double>(layer.bytes.wire);
  const double bytes = 2 * static_cast<double>(moved_numbers(remapping, layer)) * wire;
  const double zeroed =
      remapping == Remapping::kResidual ? static_cast<double>(layer.stream_columns) * wire : 0;
  for (const Move& move : remap.moves) {
    const double count = static_cast<double>(move.tokens), moved = bytes * count;
    const size_t from = static_cast<size_t>(plan.grid.node_of(move.from));
    const size_t to = static_cast<size_t>(plan.grid.node_of(move.to));
    if (from != to) {
      between[from] += moved;
      outside[static_cast<size_t>(move.from)] += moved;
    } else {
      inside[static_cast<size_t>(move.from)] += moved;
    }
    for (const int32_t rank : {move.from, move.to}) {
      latencies[static_cast<size_t>(rank)] +=
          4 * (from != to ? machine.links.between_latency_seconds
                          : machine.links.inside_latency_seconds);
      copied[static_cast<size_t>(rank)] += 2 * moved;
    }
    copied[static_cast<size_t>(move.to)] += zeroed * count;
  }
  const double leaving =
      std::max(*std::ranges::max_element(outside),
               *std::ranges::max_element(between) / static_cast<double>(machine.links_of_node));
  const double rate = machine.memory_bytes_per_second;
  return {*std::ranges::max_element(latencies) +
              machine.links.inside_byte_seconds * *std::ranges::max_element(inside) +
              machine.links.between_byte_seconds * leaving,
          rate > 0 ? *std::ranges::max_element(copied) / rate : 0};
}

std::vector<int64_t> rounded(const std::vector<double>& values) {
  std::vector<int64_t> counts;
  for (const double value : values) counts.push_back(std::llround(value));
  return counts;
}

/// Linear modules where tokens are moved in one way: those before and behind attention, and the
/// others, of a rank's own tokens or of even shares.
struct Linear {
  Remapping remapping = Remapping::kNone;
  double of_attention = 0, of_others = 0;  // seconds of a token
  double even = 0;                         // tokens
  double remap = 0;

  double seconds(double tokens) const {
    return of_attention * (remapping == Remapping::kQkv ? even : tokens) +
           of_others * (remapping == Remapping::kNone ? tokens : even);
  }
};

/// In each of the ways that the options allow. A third of a product is for its weights, which
/// nobody waits for: behind it stands one of the two moves of a backward of the residual stream.
std::vector<Linear> linear_ways(const Plan& plan, const std::vector<double>& tokens,
                                const Machine& machine, const Layer& layer,
                                const PriceOptions& options) {
  const double per_flop = 3 / machine.linear_flops;
  const double of_attention = per_flop * layer.attention_linear_flops_per_token;
  const double of_others = per_flop * layer.linear_flops_per_token - of_attention;
  const double even = std::ceil(std::accumulate(tokens.begin(), tokens.end(), 0.0) /
                                static_cast<double>(tokens.size()));
  const auto in = [&](Remapping remapping) {
    Linear way{remapping, of_attention, of_others, even};
    if (remapping == Remapping::kNone) return way;
    const RemapTime time = remap_time(plan, rounded(tokens), machine, layer, remapping);
    way.remap = time.transfers + time.copies;
    if (remapping == Remapping::kResidual)
      way.remap -=
          std::min(time.transfers / 4, of_attention * *std::ranges::max_element(tokens) / 3) +
          std::min(time.transfers / 4, of_others * even / 3);
    return way;
  };
  if (!options.remaps) return {in(options.remapping)};
  std::vector<Linear> ways = {in(Remapping::kNone), in(Remapping::kQkv)};
  if (options.whole_rows) ways.push_back(in(Remapping::kResidual));
  return ways;
}

/// The whole price of a plan in one way after the other to get keys between nodes.
class LayerPricer {
 public:
  LayerPricer(const Plan& plan, const Machine& machine, const Layer& layer,
              const PriceOptions& options)
      : attention_(plan, machine, layer, options),
        linear_(linear_ways(plan, attention_.tokens(), machine, layer, options)) {}

  /// With the cheapest of the ways in which tokens may move, the first of equals.
  Price price() const {
    std::vector<double> seconds;
    Price best = attention_.price(seconds);
    for (const Linear& way : linear_)
      if (const Price price = with(best, seconds, way);
          &way == &linear_.front() || price.layer() < best.layer())
        best = price;
    return best;
  }

  /// Takes that one of `count` ways in which a layer takes least time, the first of equals.
  template <class Take>
  Price cheapest(size_t count, const Take& take) const {
    size_t best = 0;
    Price least;
    for (size_t way = 0; way < count; ++way) {
      take(way);
      const Price cost = price();
      if (way > 0 && !(cost.layer() < least.layer())) continue;
      least = cost;
      best = way;
    }
    take(best);
    return least;
  }

 private:
  Price with(Price price, const std::vector<double>& seconds, const Linear& way) const {
    price.remapping = way.remapping;
    price.remap = way.remap;
    price.slowest = price.linear_slowest = 0;
    for (size_t rank = 0; rank < seconds.size(); ++rank) {
      const double linear = way.seconds(attention_.tokens()[rank]);
      price.linear_slowest = std::max(price.linear_slowest, linear);
      price.slowest = std::max(price.slowest, seconds[rank] + linear);
    }
    return price;
  }

  AttentionPricer attention_;
  std::vector<Linear> linear_;
};

}  // namespace

Price price(const Plan& plan, const Machine& machine, const Layer& layer,
            const PriceOptions& options) {
  return LayerPricer(plan, machine, layer, options).price();
}

bool crosses_nodes(const Plan& plan) {
  return std::ranges::any_of(plan.groups,
                             [](const Group& group) { return group.zone == Zone::kInter; });
}

double hiding_tokens(const Machine& machine, const Layer& layer, double byte_seconds) {
  return static_cast<double>(layer.bytes.wire) * static_cast<double>(layer.heads.key_columns()) /
         static_cast<double>(layer.heads.query_columns()) * machine.attention_flops * byte_seconds;
}

PartitionOptions default_thresholds(const Machine& machine, const Layer& layer,
                                    const RankGrid& grid, int64_t capacity_tokens) {
  const auto threshold = [&](double factor, double byte_seconds) {
    return std::max<int64_t>(1, std::llround(factor * hiding_tokens(machine, layer, byte_seconds)));
  };
  return {grid, capacity_tokens, threshold(2, machine.links.inside_byte_seconds),
          threshold(2 * static_cast<double>(grid.per_node), machine.links.between_byte_seconds)};
}

double token_squares(const Machine& machine, const Layer& layer) {
  const double of_token = 3 * layer.linear_flops_per_token / machine.linear_flops;
  const double of_square = (1 + kBackwardWork) * pair_flops(layer) / 2 / machine.attention_flops;
  return of_token / of_square;
}

Price choose_heads(Plan& plan, const Machine& machine, const Layer& layer,
                   const PriceOptions& options) {
  const std::vector<int64_t>& all = options.head_ranks;
  plan.head_ranks = all.front();
  const size_t tried = crosses_nodes(plan) ? all.size() : 1;
  return LayerPricer(plan, machine, layer, options).cheapest(tried, [&](size_t at) {
    plan.head_ranks = all[at];
  });
}

void choose_way(Plan& plan, const Machine& machine, const Layer& layer, const PriceOptions& options,
                std::span<const Way> ways) {
  LayerPricer(plan, machine, layer, options).cheapest(ways.size(), [&](size_t at) {
    plan.proxies = ways[at].proxies;
    plan.pieces = ways[at].pieces;
    plan.rotations = ways[at].rotations;
  });
}

Choice choose(std::span<const int64_t> lengths, const PartitionOptions& options,
              const Machine& machine, const Layer& layer, const PriceOptions& price_options) {
  const Batch batch(lengths);
  Choice best;
  std::exception_ptr refusal;
  const auto consider = [&](Plan plan, const std::string& name) {
    const Price cost = choose_heads(plan, machine, layer, price_options);
    if (!best.name.empty() && !(cost.layer() < best.price.layer())) return false;
    best = {std::move(plan), cost, name};
    return true;
  };
  PartitionOptions cheapest = options;
  const auto place = [&](const PartitionOptions& trial) {
    try {
      if (consider(partition(batch, trial), "zones")) cheapest = trial;
    } catch (const UserError&) {
      if (!refusal) refusal = std::current_exception();
    }
  };
  std::set<std::pair<int64_t, int64_t>> tried;
  const auto zones = [&](double inside, double between) {
    PartitionOptions trial = options;
    const auto scaled = [](int64_t value, double factor) {
      return std::max<int64_t>(1, std::llround(static_cast<double>(value) * factor));
    };
    trial.split_inside = scaled(options.split_inside, inside);
    trial.split_between = scaled(options.split_between, between);
    if (tried.emplace(trial.split_inside, trial.split_between).second) place(trial);
  };
  const auto used = [&](int64_t neighbours) {
    return static_cast<double>(std::min(neighbours, machine.links_of_node));
  };
  const double first = used(price_options.head_ranks.front());
  zones(1, 1 / first);
  for (const double factor : {0.5, 2.0}) {
    zones(factor, 1 / first);
    zones(1, factor / first);
  }
  for (const int64_t neighbours : price_options.head_ranks) zones(1, 1 / used(neighbours));
  cheapest.token_squares = token_squares(machine, layer);
  if (cheapest.token_squares > 0) place(cheapest);
  for (int i = 0; i < kNumBaselines; ++i) {
    const Baseline baseline = static_cast<Baseline>(i);
    const bool ring = baseline != Baseline::kGathered && baseline != Baseline::kHeads;
    if (!ring && price_options.rings_only) continue;
    if (baseline == Baseline::kHeads && !heads_divide(layer.heads, options.grid.ranks())) continue;
    Plan plan = baseline_plan(batch, options, baseline);
    if (fits(plan, options.capacity_tokens)) consider(std::move(plan), baseline_name(baseline));
  }
  if (best.name.empty() && refusal) std::rethrow_exception(refusal);
  return best;
}

}  // namespace strait::sequence
