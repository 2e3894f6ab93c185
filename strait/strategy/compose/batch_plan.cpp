#include "strait/strategy/compose/batch_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "strait/base/errors.h"
#include "strait/shape/segment.h"
#include "strait/strategy/compose/precision.h"

namespace strait::strategy {
namespace {

/// Tokens of a document on a rank at which attention has half its rate: those of a tile, as a
/// diagonal one is worked on whole (sequence/worked_pairs.h).
constexpr double kHalfRateTokens = 64;

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

constexpr std::string_view kWhole = "whole:";

/// "off" | "auto" | "N" | "whole:N"; 0: no number.
int64_t proxies_of(std::string_view routing) {
  if (routing.starts_with(kWhole)) routing.remove_prefix(kWhole.size());
  int64_t number = 0;
  std::from_chars(routing.data(), routing.data() + routing.size(), number);
  return number;
}

void check_proxies(int64_t proxies, const sequence::RankGrid& grid) {
  if (grid.nodes > 1 && proxies <= grid.per_node) return;
  ErrorPlace place;
  place.key = "sequence.routing";
  throw UserError(
      fmt::format("sequence.routing = \"{}\" cannot take effect: {}; the nearest valid value is {}",
                  proxies,
                  grid.nodes == 1
                      ? std::string("mesh.axes.sequence stays inside a node")
                      : fmt::format("a node has {} ranks of mesh.axes.sequence", grid.per_node),
                  grid.nodes == 1 ? "\"auto\"" : fmt::format("\"{}\"", grid.per_node)),
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

sequence::Remapping remapping_of(const std::string& remap) {
  for (const auto one : {sequence::Remapping::kQkv, sequence::Remapping::kResidual})
    if (remap == sequence::remapping_name(one)) return one;
  return sequence::Remapping::kNone;
}

int64_t most_tokens(const sequence::Plan& plan) {
  int64_t most = 0;
  for (const sequence::Load& load : sequence::loads(plan)) most = std::max(most, load.tokens);
  return most;
}

}  // namespace

BatchPlanner::BatchPlanner(const Run& run, const Cluster& cluster, const Mesh& mesh,
                           const ModelShape& local, int64_t row_tokens)
    : engine_(run.sequence.engine),
      remap_(run.sequence.remap),
      fills_(run.sequence.fill),
      context_(run.model.shape.context) {
  const MeshAxis& axis = mesh.axis("sequence");
  const Dtype dtype = dtype_of(run.train.precision);
  const sequence::RankGrid grid = grid_of(cluster, axis);
  const BlockExtent extent = block_extent(local, 1, row_tokens / axis.size, dtype);
  machine_.attention_flops = cluster.attention_flops_per_second(dtype) * kWorkOfCounted;
  machine_.linear_flops = cluster.model_flops_per_second(dtype);
  machine_.half_rate_tokens = kHalfRateTokens;
  machine_.links = links_of(cluster, axis, grid);
  layer_ = {{extent.heads, extent.kv_heads, extent.head_width},
            {dtype_bytes(dtype), std::max<int64_t>(4, dtype_bytes(dtype))},
            linear_flops_per_token(local, dtype),
            attention_linear_flops_per_token(local, dtype),
            extent.width};
  machine_.links_of_node = level_between(cluster, axis, axis.size - 1).links;
  machine_.links.of_node = machine_.links_of_node;
  most_proxies_ = std::min(machine_.links_of_node, grid.per_node);
  if (run.sequence.routing.starts_with(kWhole)) most_pieces_ = 1;
  if (run.sequence.routing == "off" || grid.nodes == 1) most_proxies_ = 1;
  if (const int64_t proxies = proxies_of(run.sequence.routing); proxies > 0) {
    check_proxies(proxies, grid);
    least_proxies_ = most_proxies_ = proxies;
  }
  options_ = sequence::default_thresholds(machine_, layer_, grid, row_tokens / axis.size);
}

sequence::PriceOptions BatchPlanner::price_options() const {
  return {.routes = most_proxies_ > 1,
          .fills = fills_,
          .remaps = remap_ == "auto",
          .rings_only = true,
          .remapping = remapping_of(remap_)};
}

sequence::Plan BatchPlanner::made(std::span<const int64_t> lengths) const {
  using sequence::Baseline;
  if (engine_ == "zeppelin")
    return sequence::choose(lengths, options_, machine_, layer_, price_options()).plan;
  const Baseline baseline = engine_ == "packed" ? Baseline::kPacked
                            : engine_ == "even" ? Baseline::kEven
                                                : Baseline::kHybrid;
  return sequence::baseline_plan(lengths, options_, baseline);
}

/// As many proxies and pieces as cost least, of doubles and of all that there are; the fewest of
/// equals.
void BatchPlanner::route(sequence::Plan& plan) const {
  const bool crosses = std::ranges::any_of(plan.groups, [](const sequence::Group& group) {
    return group.zone == sequence::Zone::kInter;
  });
  if (most_proxies_ == 1 || !crosses) return;
  const auto seconds = [&](int64_t proxies, int64_t pieces) {
    plan.proxies = proxies;
    plan.pieces = pieces;
    return sequence::price(plan, machine_, layer_, {.fills = fills_}).attention_slowest;
  };
  sequence::Route best{least_proxies_, 1, seconds(least_proxies_, 1)};
  const int64_t first = std::max<int64_t>(2, least_proxies_);
  for (int64_t proxies = first; proxies <= most_proxies_;
       proxies = proxies < most_proxies_ ? std::min(2 * proxies, most_proxies_) : proxies + 1)
    for (int64_t pieces = 1; pieces <= most_pieces_; pieces *= 2)
      if (const double other = seconds(proxies, pieces); other < best.seconds)
        best = {proxies, pieces, other};
  plan.proxies = best.proxies;
  plan.pieces = best.pieces;
}

std::shared_ptr<const sequence::Plan> BatchPlanner::plan(std::span<const int64_t> lengths) const {
  auto plan = std::make_shared<sequence::Plan>(made(lengths));
  plan->fills = fills_;
  route(*plan);
  plan->remapping = sequence::price(*plan, machine_, layer_, price_options()).remapping;
  if (const int64_t most = most_tokens(*plan); most > options_.capacity_tokens) {
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
  while (lengths.size() > 1 && most_tokens(made(lengths)) > options_.capacity_tokens)
    lengths.pop_back();
  return lengths;
}

}  // namespace strait::strategy
