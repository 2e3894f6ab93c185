#include "strait/config/check_mesh.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "strait/config/keys.h"
#include "strait/config/place.h"
#include "strait/shape/split.h"
#include "strait/topology/mesh.h"
#include "strait/topology/nearest.h"
#include "strait/topology/positions.h"

namespace strait {
namespace {

using NamedSize = std::pair<const char*, int64_t>;

/// The axes that are not data, in the order in which they take their share of the ranks.
std::vector<NamedSize> other_axes(const MeshAxes& axes) {
  return {{"x", axes.x},
          {"y", axes.y},
          {"z", axes.z},
          {"sequence", axes.sequence},
          {"stage", axes.stage}};
}

}  // namespace

void check_mesh_sizes(const Run& run, int64_t ranks) {
  int64_t left = ranks;
  std::string others;
  for (const auto& [name, size] : other_axes(run.mesh.axes)) {
    const std::string key = fmt::format("mesh.axes.{}", name);
    if (size < 1 || left % size != 0)
      refuse_key(run, key,
                 fmt::format("{} = {} does not divide {} of the {} ranks; the nearest valid value "
                             "is {}",
                             key, size, left, ranks, nearest_divisor(left, size)));
    left /= size;
    if (size > 1) others += fmt::format("{}{} = {}", others.empty() ? "" : ", ", name, size);
  }
  const int64_t data = run.mesh.axes.data;
  if (data == 0 || data == left) return;
  refuse_key(run, "mesh.axes.data",
             fmt::format("mesh.axes.data = {}, but the run has {} ranks and {}; the nearest valid "
                         "value is {} (or 0, the rest)",
                         data, ranks, others.empty() ? "every other axis is 1" : others, left));
}

void check_mesh_model(const Run& run) {
  const int64_t x = run.mesh.axes.x;
  if (x > 1 && run.runtime.device == "cuda")
    refuse_key(run, "mesh.axes.x",
               fmt::format("mesh.axes.x = {} cannot take effect with runtime.device = \"cuda\", "
                           "whose blocks run as one piece; the nearest valid value is 1, or "
                           "runtime.device = \"cpu\"",
                           x));
  with_place(run,
             [&] { check_x(run.model.shape, block_style(run.model.family), run.mesh.axes.x); });
}

void check_mesh_levels(const Run& run, const Cluster& cluster) {
  with_place(run, [&] { positions_of(cluster, Mesh(run.mesh, cluster.ranks)); });
}

}  // namespace strait
