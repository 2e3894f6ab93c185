#include "strait/strategy/compose/batch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <optional>
#include <string_view>

#include "strait/base/errors.h"
#include "strait/config/head_ranks.h"
#include "strait/config/precision.h"
#include "strait/sequence/balanced.h"
#include "strait/shape/segment.h"
#include "strait/topology/nearest.h"

namespace strait::strategy {
namespace {

/// Each query's diagonal tile is worked on whole, on whichever rank (sequence/worked_pairs.h).
constexpr double kTileTokens = 64;

/// Pairs of a head that take as long as one call of its attention to some keys: 1 to 2 us forward
/// and backward where attention does 40 GFLOP/s in heads of 64.
constexpr double kCallPairs = 100;

/// Plans count what a backward does of its forward again. The cluster's rate counts it as two
/// forwards.
constexpr double kWorkOfCounted = (1 + sequence::kBackwardWork) / 3;

/// Ranks of the axis that stand in one group of the outermost level that it leaves.
sequence::RankGrid grid_of(const Cluster& cluster, const MeshAxis& axis) {
  int64_t per_node = axis.size;
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    const int64_t inside = cluster.group_size(static_cast<int64_t>(level)) / axis.stride;
    if (inside < axis.size) per_node = std::max<int64_t>(1, inside);
  }
  if (axis.size % per_node != 0) per_node = 1;
  return {axis.size / per_node, per_node};
}

/// The outermost level between ranks of the axis that are so many apart.
const Level& level_between(const Cluster& cluster, const MeshAxis& axis, int64_t apart) {
  const int64_t level = cluster.level_between(0, std::max<int64_t>(1, apart) * axis.stride);
  return cluster.levels[static_cast<size_t>(level)];
}

sequence::RouteLinks links_of(const Cluster& cluster, const MeshAxis& axis,
                              const sequence::RankGrid& grid) {
  const Level& inside = level_between(cluster, axis, grid.per_node - 1);
  const Level& between = level_between(cluster, axis, axis.size - 1);
  return {1 / inside.bytes_per_second, 1 / between.bytes_per_second, inside.latency_seconds,
          between.latency_seconds};
}

constexpr std::string_view kWhole = "whole:", kRotate = "rotate", kBoth = "both:";

/// sequence.routing: "off" | "auto" | "N" | "whole:N" | "rotate" | "rotate:N" | "both:N".
struct Routing {
  bool rotates = false, whole = false, both = false;
  int64_t number = 0;  // 0: none
  explicit Routing(std::string_view text) {
    rotates = text.starts_with(kRotate);
    whole = text.starts_with(kWhole);
    both = text.starts_with(kBoth);
    const size_t begin = std::min(text.find(':') + 1, text.size());  // 0 without a colon
    std::from_chars(text.data() + begin, text.data() + text.size(), number);
  }
};

[[noreturn]] void refuse_routing(const std::string& routing, const std::string& reason,
                                 const std::string& nearest) {
  ErrorPlace place;
  place.key = "sequence.routing";
  throw UserError(fmt::format("sequence.routing = \"{}\" cannot take effect: {}; the nearest valid "
                              "value is \"{}\"",
                              routing, reason, nearest),
                  place);
}

/// `key_heads`: of a rank of x.
void check_routing(const std::string& text, const Routing& routing, const sequence::RankGrid& grid,
                   int64_t key_heads) {
  if (!routing.rotates && routing.number == 0) return;
  const auto nearest = [&](int64_t most) {
    if (most < 2) return std::string("auto");
    const std::string_view form = routing.rotates ? "rotate:"
                                  : routing.whole ? kWhole
                                  : routing.both  ? kBoth
                                                  : "";
    return fmt::format("{}{}", form, most);
  };
  const int64_t wanted = std::max<int64_t>(routing.rotates ? 2 : 1, routing.number);
  if (grid.nodes == 1) refuse_routing(text, "mesh.axes.sequence stays inside a node", "auto");
  if (routing.both && grid.per_node < 4)
    refuse_routing(
        text,
        fmt::format("two orders over two proxies each take 4 ranks, and a node has {} of "
                    "mesh.axes.sequence",
                    grid.per_node),
        "auto");
  if (routing.both && key_heads < 2)
    refuse_routing(text, "a rank has 1 key head, of which there is one order",
                   std::to_string(std::min(grid.per_node, wanted)));
  const int64_t most = routing.rotates ? std::min(grid.per_node, key_heads) : grid.per_node;
  if (wanted > grid.per_node)
    refuse_routing(text, fmt::format("a node has {} ranks of mesh.axes.sequence", grid.per_node),
                   nearest(most));
  if (wanted > most)
    refuse_routing(text, fmt::format("a rank has {} key heads", key_heads), nearest(most));
}

[[noreturn]] void refuse_heads(int64_t head_ranks, const std::string& reason, int64_t nearest) {
  ErrorPlace place;
  place.key = "sequence.head_ranks";
  throw UserError(fmt::format("sequence.head_ranks = {} {}; the nearest valid value is {}",
                              head_ranks, reason, nearest),
                  place);
}

/// Of a layer, with its part of what embedding and head have to do.
double linear_flops_per_token(const ModelShape& local, Dtype dtype) {
  double flops = 0;
  for (int64_t block = 0; block < std::ssize(local.blocks); ++block) {
    const BlockSizes sizes = block_sizes(local, block, 1, 1, dtype);
    flops += sizes.forward_flops - sizes.attention_flops;
  }
  return flops / static_cast<double>(local.options.layers);
}

/// Of a layer's products before and behind attention.
double attention_linear_flops_per_token(const ModelShape& local, Dtype dtype) {
  double flops = 0;
  for (const Segment product : {Segment::kQkv, Segment::kOutput}) {
    const int index = static_cast<int>(product);
    flops += segment_sizes(local, {index, index + 1}, 1, 1, dtype).forward_flops;
  }
  return flops;
}

/// Numbers from `least` on, at least two: doubles, and the most.
void for_each_double(int64_t least, int64_t most, const std::function<void(int64_t)>& act) {
  for (int64_t number = std::max<int64_t>(2, least); number <= most;
       number = number < most ? std::min(2 * number, most) : number + 1)
    act(number);
}

sequence::Remapping remapping_of(const std::string& remap) {
  for (const auto one : {sequence::Remapping::kQkv, sequence::Remapping::kResidual})
    if (remap == sequence::remapping_name(one)) return one;
  return sequence::Remapping::kNone;
}

}  // namespace

BatchPlanner::BatchPlanner(const Run& run, const Cluster& cluster, const Mesh& mesh,
                           const ModelShape& local, int64_t row_tokens)
    : engine_(run.sequence.engine),
      remap_(run.sequence.remap),
      fills_(run.sequence.fill),
      row_split_(local.splits_rows ? local.x : 1),
      context_(run.model.shape.context) {
  const MeshAxis& axis = mesh.axis("sequence");
  const Dtype dtype = dtype_of(run.train.precision);
  const sequence::RankGrid grid = grid_of(cluster, axis);
  const BlockExtent extent = block_extent(local, 1, row_tokens / axis.size, dtype);
  machine_.attention_flops = cluster.attention_flops_per_second(dtype) * kWorkOfCounted;
  machine_.linear_flops = cluster.model_flops_per_second(dtype);
  machine_.memory_bytes_per_second = cluster.memory_bytes_per_second;
  machine_.tile_tokens = kTileTokens;
  machine_.call_pairs = kCallPairs;
  machine_.links = links_of(cluster, axis, grid);
  layer_ = {{extent.heads, extent.kv_heads, extent.head_width},
            {dtype_bytes(dtype), std::max<int64_t>(4, dtype_bytes(dtype))},
            linear_flops_per_token(local, dtype),
            attention_linear_flops_per_token(local, dtype),
            extent.width};
  machine_.links_of_node = level_between(cluster, axis, axis.size - 1).links;
  machine_.links.of_node = machine_.links_of_node;
  decide_routing(run.sequence.routing, grid);
  decide_heads(run.sequence, grid);
  options_ = sequence::default_thresholds(machine_, layer_, grid, row_tokens / axis.size);
}

void BatchPlanner::decide_heads(const SequenceOptions& options, const sequence::RankGrid& grid) {
  const std::optional<int64_t> given = given_head_ranks(options);
  const int64_t most = std::gcd(grid.per_node, layer_.heads.keys);
  for (int64_t number = 2; !given && grid.nodes > 1 && number <= most; ++number)
    if (most % number == 0) head_ranks_.push_back(number);
  const int64_t head_ranks = given.value_or(1);
  if (head_ranks < 2) return;
  if (grid.nodes == 1)
    refuse_heads(head_ranks, "cannot take effect: mesh.axes.sequence stays inside a node", 0);
  if (grid.per_node % head_ranks != 0)
    refuse_heads(
        head_ranks,
        fmt::format("does not divide the {} ranks of mesh.axes.sequence in a node", grid.per_node),
        nearest_divisor(most, head_ranks));
  head_ranks_ = {head_ranks};
}

void BatchPlanner::decide_routing(const std::string& text, const sequence::RankGrid& grid) {
  const int64_t key_heads = layer_.heads.keys;
  const Routing routing(text);
  check_routing(text, routing, grid, key_heads);
  const int64_t links = std::min(machine_.links_of_node, grid.per_node);
  if (routing.whole) most_pieces_ = 1;
  if (grid.nodes == 1 || text == "off") return;
  if (routing.rotates) {
    least_rotations_ = std::max<int64_t>(2, routing.number);
    most_rotations_ = routing.number > 0 ? routing.number : std::min(grid.per_node, key_heads);
  } else if (routing.both) {
    both_alone_ = true;
    most_both_ = routing.number;
  } else if (routing.number > 0) {
    least_proxies_ = most_proxies_ = routing.number;
  } else {
    most_proxies_ = links;
    most_rotations_ = std::min(links, key_heads);
    most_both_ = links;
  }
}

sequence::PriceOptions BatchPlanner::price_options() const {
  return {.routes = most_proxies_ > 1,
          .fills = fills_,
          .remaps = remap_ == "auto",
          .whole_rows = row_split_ == 1,
          .rings_only = true,
          .remapping = remapping_of(remap_),
          .rotations = most_rotations_,
          .head_ranks = head_ranks_};
}

sequence::Plan BatchPlanner::made(std::span<const int64_t> lengths) const {
  using sequence::Baseline;
  if (engine_ == "zeppelin")
    return sequence::choose(lengths, options_, machine_, layer_, price_options()).plan;
  const Baseline baseline = engine_ == "packed" ? Baseline::kPacked
                            : engine_ == "even" ? Baseline::kEven
                                                : Baseline::kHybrid;
  const sequence::Batch batch(lengths);
  sequence::Plan plan = sequence::baseline_plan(batch, options_, baseline);
  if (!sequence::fits(plan, options_.capacity_tokens))
    plan = sequence::balanced_plan(batch, options_.grid);
  sequence::choose_heads(plan, machine_, layer_, price_options());
  return plan;
}

/// Proxies and pieces, orders of key heads, or orders over proxies of their own.
std::vector<sequence::Way> BatchPlanner::ways() const {
  std::vector<sequence::Way> ways;
  const auto add_proxies = [&](int64_t number, int64_t rotations) {
    for (int64_t pieces = 1; pieces <= most_pieces_; pieces *= 2)
      ways.push_back({number, pieces, rotations});
  };
  if (!both_alone_) {
    ways.push_back({least_proxies_, 1, least_rotations_});
    for_each_double(least_rotations_, most_rotations_, [&](int64_t number) {
      ways.push_back({1, 1, number});
    });
    for_each_double(least_proxies_, most_proxies_, [&](int64_t number) { add_proxies(number, 1); });
  }
  for_each_double(2, std::min(most_both_ / 2, layer_.heads.keys), [&](int64_t orders) {
    for_each_double(2, most_both_ / orders, [&](int64_t number) { add_proxies(number, orders); });
  });
  return ways;
}

/// What costs least; the first of equals, which are those of fewest orders and proxies, and orders
/// rather than proxies. Rings of runs that exchange heads leave a node over the link of each rank,
/// so that they need neither.
void BatchPlanner::route(sequence::Plan& plan) const {
  if (plan.head_ranks > 1 || !sequence::crosses_nodes(plan)) return;
  if (most_proxies_ == 1 && most_rotations_ == 1 && most_both_ == 1) return;
  sequence::PriceOptions options = price_options();
  options.routes = false;
  options.rotations = 1;
  sequence::choose_way(plan, machine_, layer_, options, ways());
}

std::shared_ptr<const sequence::Plan> BatchPlanner::plan(std::span<const int64_t> lengths) const {
  auto plan = std::make_shared<sequence::Plan>(made(lengths));
  plan->fills = fills_;
  plan->row_split = row_split_;
  route(*plan);
  plan->remapping = sequence::price(*plan, machine_, layer_, price_options()).remapping;
  if (!sequence::fits(*plan, options_.capacity_tokens)) {
    const int64_t most = sequence::most_tokens(*plan);
    ErrorPlace place;
    place.key = "sequence.capacity_tokens";
    throw UserError(
        fmt::format(
            "sequence.capacity_tokens: sequence.engine = \"{}\" gives a rank {} tokens of a "
            "batch, and it has {} rows; nearest: sequence.capacity_tokens = {}",
            engine_, most, options_.capacity_tokens, most),
        place);
  }
  return plan;
}

sequence::Price BatchPlanner::price(const sequence::Plan& plan) const {
  return sequence::price(plan, machine_, layer_,
                         {.fills = plan.fills, .remapping = plan.remapping});
}

std::vector<int64_t> BatchPlanner::assumed_lengths(int64_t tokens) const {
  std::vector<int64_t> lengths;
  for (int64_t left = tokens; left > 0; left -= lengths.back())
    lengths.push_back(std::min(left, context_));
  while (lengths.size() > 1 && sequence::most_tokens(made(lengths)) > options_.capacity_tokens)
    lengths.pop_back();
  return lengths;
}

}  // namespace strait::strategy
