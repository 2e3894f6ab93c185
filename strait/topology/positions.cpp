#include "strait/topology/positions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "strait/base/errors.h"

namespace strait {
namespace {

bool is_position_axis(const MeshAxis& axis) {
  return axis.name == "z" || axis.name == "sequence" || axis.name == "data";
}

/// "2, 4, 12", innermost first.
std::string fan_outs(const Cluster& cluster) {
  std::string text;
  for (const Level& level : cluster.levels)
    text += (text.empty() ? "" : ", ") + std::to_string(level.size);
  return text;
}

/// Takes a factor of `size` out of the fan-outs, one after another; false when it ends within one.
template <class Iterator>
bool take(int64_t size, Iterator first, Iterator last) {
  for (; size > 1 && first != last; ++first) {
    if (first->size % size != 0 && size % first->size != 0) return false;
    const int64_t taken = std::min(size, first->size);
    first->size /= taken;
    size /= taken;
  }
  return size == 1;
}

/// From the innermost level on, or from the outermost one.
bool take(int64_t size, bool inside, std::vector<Level>& levels) {
  return inside ? take(size, levels.begin(), levels.end())
                : take(size, levels.rbegin(), levels.rend());
}

/// The size nearest to `size` that can be taken, the lesser of two; 1 always can.
int64_t nearest_size(int64_t size, bool inside, const Cluster& cluster) {
  int64_t nearest = 1;
  for (int64_t candidate = 2; candidate <= cluster.ranks; ++candidate) {
    std::vector<Level> levels = cluster.levels;
    if (std::abs(candidate - size) < std::abs(nearest - size) && take(candidate, inside, levels))
      nearest = candidate;
  }
  return nearest;
}

void take_axis(const MeshAxis& axis, bool inside, Cluster& cluster) {
  Cluster left = cluster;
  if (take(axis.size, inside, left.levels)) {
    cluster.levels = std::move(left.levels);
    return;
  }
  const int64_t nearest = nearest_size(axis.size, inside, cluster);
  ErrorPlace place;
  if (axis.name == "replica") {
    place.key = "sync.replica";
    throw UserError(fmt::format("sync.replica makes {} replicas, which end within a group of a "
                                "level of cluster {} (fan-outs {} are left); the nearest valid "
                                "number of replicas is {}",
                                axis.size, cluster.name, fan_outs(cluster), nearest),
                    place);
  }
  place.key = "mesh.axes." + axis.name;
  throw UserError(fmt::format("{} = {} ends within a group of a level of cluster {} (fan-outs {} "
                              "are left); the nearest valid size is {}",
                              *place.key, axis.size, cluster.name, fan_outs(cluster), nearest),
                  place);
}

/// At least one level stays.
void drop_levels_of_one(std::vector<Level>& levels) {
  const Level outermost = levels.back();
  std::erase_if(levels, [](const Level& level) { return level.size == 1; });
  if (levels.empty()) levels = {outermost};
}

}  // namespace

Cluster positions_of(const Cluster& cluster, const Mesh& mesh) {
  std::vector<MeshAxis> axes = mesh.axes();
  std::erase_if(axes, [](const MeshAxis& axis) { return axis.size == 1; });
  const auto first = std::ranges::find_if(axes, is_position_axis);
  const auto behind = std::find_if_not(first, axes.end(), is_position_axis);
  ensure(std::none_of(behind, axes.end(), is_position_axis),
         "positions_of: an axis lies between the data-parallel ones");
  Cluster positions = cluster;
  for (auto axis = axes.begin(); axis != first; ++axis) take_axis(*axis, true, positions);
  for (auto axis = axes.end(); axis != behind; --axis) take_axis(axis[-1], false, positions);
  if (axes.size() == static_cast<size_t>(behind - first)) return cluster;
  drop_levels_of_one(positions.levels);
  positions.ranks = positions.group_size(static_cast<int64_t>(positions.levels.size()) - 1);
  return positions;
}

}  // namespace strait
