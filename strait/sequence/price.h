// What the attention of a plan costs in time, by closed forms, and the plan that costs least.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strait/sequence/partition.h"
#include "strait/sequence/routing.h"
#include "strait/sequence/traffic.h"

namespace strait::sequence {

/// Operations of a backward of attention in forwards: probabilities are made again.
inline constexpr double kBackwardWork = 2.5;

/// Rates of a rank and its links.
struct Machine {
  double attention_flops = 1e12;       // of a rank, per second, on whole tiles
  double tile_tokens = 0;              // of which a chunk's diagonal ones are worked on whole
  double linear_flops = 1e12;          // of a rank, in matrix products
  RouteLinks links;                    // seconds per byte and message of one link
  int64_t links_of_node = 1;           // between nodes
  double memory_bytes_per_second = 0;  // copies of a rank, read and written; 0: they take no time
  double call_pairs = 0;               // pairs of queries and keys that take as long as a call

  /// What a head's attention to a document costs each of the `members` of its ring, in pairs: the
  /// causal ones, those that diagonal tiles hold beside them, and the calls, of which there are two
  /// in every round and three in the one of own keys.
  double worked_pairs(double length, double members) const {
    const double chunk = members > 1 ? length / (2 * members) : length;
    return length / members * (length + (chunk < tile_tokens ? chunk : tile_tokens)) / 2 +
           call_pairs * (members > 1 ? 2 * members + 1 : 1);
  }
};

/// One layer of the model.
struct Layer {
  Heads heads;
  ElementBytes bytes;
  double linear_flops_per_token = 0;  // forward
  double attention_linear_flops_per_token =
      0;                       // of them, of the products before and behind attention
  int64_t stream_columns = 1;  // of the residual stream
};

struct PriceOptions {
  bool routes = false;     // crossing transfers over proxies
  bool fills = false;      // local work stands where inter-node rounds wait
  bool remaps = false;     // tokens even for linear modules, in the cheapest way, if any is cheaper
  bool whole_rows = true;  // ranks of x do not split the residual stream, so that it may move
  bool rings_only = false;                 // choose leaves out gathered keys and exchanged heads
  Remapping remapping = Remapping::kNone;  // unless `remaps`: how, whatever it costs
  int64_t rotations = 1;  // up to so many orders in which keys go around between nodes
  std::vector<int64_t> head_ranks = {1};  // choose takes the cheapest of them
};

/// Seconds of one layer, forward and backward.
struct Price {
  double attention_slowest = 0, attention_mean = 0;  // over ranks: computing and waiting
  double computing_slowest = 0, computing_mean = 0;  // of it, computing
  Remapping remapping = Remapping::kNone;
  double remap = 0;  // of its transfers and the copies before and behind them
  double linear_slowest = 0;
  double slowest = 0;  // over ranks: attention and linear modules
  double layer() const { return slowest + remap; }
};
/// A rank that has less attention than others may have more of the rest: ranks wait for each other
/// in rings alone. Shares of a document on a ring count as even. Cost: O(documents + sum of group
/// sizes).
Price price(const Plan& plan, const Machine& machine, const Layer& layer,
            const PriceOptions& options);

/// Whether a ring of it leaves its node.
bool crosses_nodes(const Plan& plan);

/// Length per rank from which a ring's transfers are hidden: e (k/h) F b.
double hiding_tokens(const Machine& machine, const Layer& layer, double byte_seconds);
/// 2 n* inside nodes, 2 G n* between them.
PartitionOptions default_thresholds(const Machine& machine, const Layer& layer,
                                    const RankGrid& grid, int64_t capacity_tokens);

/// How much longer a token of linear modules takes than a pair of a long document's square, forward
/// and backward: of a document of so many tokens both take as long.
double token_squares(const Machine& machine, const Layer& layer);

/// Gives the plan that of PriceOptions::head_ranks which costs least, the first of equals, and the
/// first where no ring crosses nodes. Cost: as choose_way.
Price choose_heads(Plan& plan, const Machine& machine, const Layer& layer,
                   const PriceOptions& options);

/// How keys go from one node to another: Plan's members of these names.
struct Way {
  int64_t proxies = 1, pieces = 1, rotations = 1;
};
/// Gives the plan that one of `ways` in which a layer takes least time, the first of equals; at
/// least one. Cost: that of price and, for each, of the rings that cross nodes.
void choose_way(Plan& plan, const Machine& machine, const Layer& layer, const PriceOptions& options,
                std::span<const Way> ways);

struct Choice {
  Plan plan;
  Price price;
  std::string name;  // "zones" or the baseline's
};
/// The cheapest of the partition with these thresholds, with each of them halved or doubled, with
/// the cheapest of these by squares and tokens (token_squares), and of the baselines that the
/// capacity holds (heads only where they divide). Ties: the first of these.
/// Each by choose_heads. Rings of neighbours that exchange heads carry as much over a link each as
/// one does over one, which lowers the threshold between nodes: tried for every number of them.
/// UserError of partition where the capacity holds none of them.
Choice choose(std::span<const int64_t> lengths, const PartitionOptions& options,
              const Machine& machine, const Layer& layer, const PriceOptions& price_options);

}  // namespace strait::sequence
