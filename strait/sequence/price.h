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
  double attention_flops = 1e12;       // of a rank, per second, on long runs of tokens
  double half_rate_tokens = 0;         // length of a document, split or not, at half of it
  double linear_flops = 1e12;          // of a rank, in matrix products
  RouteLinks links;                    // seconds per byte and message of one link
  int64_t links_of_node = 1;           // between nodes
  double memory_bytes_per_second = 0;  // copies of a rank, read and written; 0: they take no time
  double flops_at(double tokens) const {
    return attention_flops * tokens / (tokens + half_rate_tokens);
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
  double layer() const { return attention_slowest + remap + linear_slowest; }
};
/// Shares of a document on a ring count as even. Cost: O(documents + sum of group sizes).
Price price(const Plan& plan, const Machine& machine, const Layer& layer,
            const PriceOptions& options);

/// Whether a ring of it leaves its node.
bool crosses_nodes(const Plan& plan);

/// Length per rank from which a ring's transfers are hidden: e (k/h) F b.
double hiding_tokens(const Machine& machine, const Layer& layer, double byte_seconds);
/// 2 n* inside nodes, 2 G n* between them.
PartitionOptions default_thresholds(const Machine& machine, const Layer& layer,
                                    const RankGrid& grid, int64_t capacity_tokens);

/// Gives the plan that of PriceOptions::head_ranks which costs least, the first of equals, and the
/// first where no ring crosses nodes. Cost: that of price and, for each, of attention.
Price choose_heads(Plan& plan, const Machine& machine, const Layer& layer,
                   const PriceOptions& options);

struct Choice {
  Plan plan;
  Price price;
  std::string name;  // "zones" or the baseline's
};
/// The cheapest of the partition with these thresholds, with each of them halved or doubled, and of
/// the baselines that the capacity holds (heads only where they divide). Ties: the first of these.
/// Each by choose_heads. Rings of neighbours that exchange heads carry as much over a link each as
/// one does over one, which lowers the threshold between nodes: tried for every number of them.
/// UserError of partition where the capacity holds none of them.
Choice choose(std::span<const int64_t> lengths, const PartitionOptions& options,
              const Machine& machine, const Layer& layer, const PriceOptions& price_options);

}  // namespace strait::sequence
