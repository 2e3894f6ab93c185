#include "strait/plan/tensor_grid.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "strait/base/errors.h"

namespace strait::plan {
namespace {

constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;

/// A product of a block. What a normal one makes is summed over y in the forward, the gradient of
/// its input over x; a transposed one has x and y exchanged.
struct Product {
  int64_t in = 0, out = 0;
  bool transposed = false;
};

std::array<Product, 4> products_of(const ShapeOptions& shape, DownProduct down) {
  const int64_t attention = shape.heads * shape.head_elements();
  const int64_t qkv = attention + 2 * shape.kv_heads * shape.head_elements();
  Product last{shape.ffn_width, shape.width, true};
  if (down == DownProduct::kAsPublished) std::swap(last.in, last.out);
  return {Product{shape.width, qkv, false}, Product{attention, shape.width, true},
          Product{shape.width, shape.ffn_width, false}, last};
}

/// What a rank sends of a vector in an all-gather or a reduce-scatter of `size` ranks.
double one_way(int64_t size) { return static_cast<double>(size - 1) / static_cast<double>(size); }

double number(int64_t count) { return static_cast<double>(count); }

/// The authors' tables: GiB/s by stride (1, 2, 4, 8 and more) and size; 0: any other size.
using RateTable = std::map<int64_t, std::map<int64_t, double>>;
const std::map<std::string, RateTable>& published_tables() {
  static const std::map<std::string, RateTable> tables = {
      {"perlmutter",
       {{1, {{2, 76}, {4, 225}, {8, 80}, {0, 80}}},
        {2, {{2, 76}, {4, 40}, {0, 40}}},
        {4, {{2, 20}, {0, 20}}},
        {8, {{0, 20}}}}},
      {"frontier",
       {{1, {{2, 129}, {4, 52}, {8, 135}, {0, 40}}},
        {2, {{2, 50}, {4, 72}, {0, 20}}},
        {4, {{2, 36}, {0, 10}}},
        {8, {{0, 5}}}}}};
  return tables;
}

}  // namespace

GridBytes grid_bytes(const ShapeOptions& shape, const Grid& grid, const GridStep& step) {
  const double rows = number(step.batch * step.tokens) / number(grid.data * grid.z);
  const double forwards = step.recomputes ? 2 : 1;
  GridBytes bytes;
  for (const Product& product : products_of(shape, step.down)) {
    const double weights = number(product.in) * number(product.out) / number(grid.x * grid.y);
    bytes.z +=
        (forwards + 1) * one_way(grid.z) * weights * number(step.number_bytes * step.micro_batches);
    bytes.data += 2 * one_way(grid.data) * weights / number(grid.z) * number(step.gradient_bytes);
    const auto& [makes, takes] =
        product.transposed ? std::pair(grid.x, grid.y) : std::pair(grid.y, grid.x);
    const double forward = forwards * 2 * one_way(makes) * rows * number(product.out) /
                           number(takes) * number(step.sum_bytes);
    const double backward =
        2 * one_way(takes) * rows * number(product.in) / number(makes) * number(step.number_bytes);
    (product.transposed ? bytes.x : bytes.y) += forward;
    (product.transposed ? bytes.y : bytes.x) += backward;
  }
  const double layers = number(shape.layers);
  return {bytes.x * layers, bytes.y * layers, bytes.z * layers, bytes.data * layers};
}

RingRate published_ring_rate(const std::string& machine) {
  const auto& tables = published_tables();
  const auto found = tables.find(machine);
  if (found == tables.end()) {
    std::vector<std::string> names;
    for (const auto& [name, table] : tables) names.push_back(name);
    throw UserError(fmt::format("no ring rates of \"{}\" were published; the nearest machine is {}",
                                machine, nearest_choice(machine, names)));
  }
  return [&table = found->second](int64_t stride, int64_t size) {
    const auto& row = table.at(std::min<int64_t>(stride, 8));
    const auto rate = row.find(size);
    return (rate == row.end() ? row.at(0) : rate->second) * kGibibyte;
  };
}

RingRate ring_rate(const Cluster& cluster) {
  return [cluster](int64_t stride, int64_t size) {
    const int64_t level = cluster.level_between(0, stride * (size - 1));
    const Level& spanned = cluster.levels[static_cast<size_t>(level)];
    const int64_t group = level == 0 ? 1 : cluster.group_size(level - 1);
    return spanned.bytes_per_second * number(spanned.links) / number(std::min(group, stride));
  };
}

double grid_seconds(const ShapeOptions& shape, const Grid& grid, const GridStep& step,
                    const RingRate& rate) {
  const GridBytes bytes = grid_bytes(shape, grid, step);
  double seconds = 0;
  int64_t stride = 1;
  std::array axes = {std::pair(bytes.x, grid.x), std::pair(bytes.y, grid.y),
                     std::pair(bytes.z, grid.z), std::pair(bytes.data, grid.data)};
  if (step.innermost == Innermost::kY) std::swap(axes[0], axes[1]);
  for (const auto& [sent, size] : axes) {
    if (size > 1) seconds += sent / rate(stride, size);
    stride *= size;
  }
  return seconds;
}

std::vector<RankedGrid> rank_grids(const ShapeOptions& shape, int64_t ranks, int64_t least_sharers,
                                   const GridStep& step, const RingRate& rate) {
  std::vector<RankedGrid> ranked;
  for (int64_t x = 1; x <= ranks; x *= 2)
    for (int64_t y = 1; x * y <= ranks; y *= 2)
      for (int64_t z = 1; x * y * z <= ranks; z *= 2) {
        const Grid grid{x, y, z, ranks / (x * y * z)};
        if (grid.ranks() != ranks || x * y * z < least_sharers) continue;
        if (step.even && step.batch % (grid.data * grid.z) != 0) continue;
        ranked.push_back({grid, grid_seconds(shape, grid, step, rate)});
      }
  std::ranges::sort(ranked, [](const RankedGrid& a, const RankedGrid& b) {
    return std::tie(a.seconds, a.grid.x, a.grid.y, a.grid.z) <
           std::tie(b.seconds, b.grid.x, b.grid.y, b.grid.z);
  });
  return ranked;
}

}  // namespace strait::plan
