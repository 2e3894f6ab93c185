#include "strait/topology/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "strait/base/errors.h"

namespace strait {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& message) {
  ErrorPlace place;
  place.key = key;
  throw UserError(message, place);
}

int64_t written_size(const MeshAxes& axes, const std::string& name) {
  if (name == "x") return axes.x;
  if (name == "y") return axes.y;
  if (name == "z") return axes.z;
  if (name == "sequence") return axes.sequence;
  return name == "data" ? axes.data : axes.stage;
}

void check_order(const std::vector<std::string>& order) {
  for (const std::string& name : order)
    if (!std::count(mesh_axis_names().begin(), mesh_axis_names().end(), name))
      refuse("mesh.order", fmt::format("mesh.order: \"{}\" is no axis; the nearest is \"{}\"", name,
                                       nearest_choice(name, mesh_axis_names())));
  for (const std::string& name : mesh_axis_names())
    if (std::count(order.begin(), order.end(), name) != 1)
      refuse("mesh.order",
             fmt::format("mesh.order must name every axis once ({}); \"{}\" is named {} times",
                         fmt::join(mesh_axis_names(), ", "), name,
                         std::count(order.begin(), order.end(), name)));
}

}  // namespace

const std::vector<std::string>& mesh_axis_names() {
  static const std::vector<std::string> names = {"x", "y", "z", "sequence", "data", "stage"};
  return names;
}

Mesh::Mesh(const MeshOptions& options, int64_t ranks) : ranks_(ranks) {
  check_order(options.order);
  int64_t product = 1;
  std::string rest;
  for (const std::string& name : options.order) {
    const int64_t size = written_size(options.axes, name);
    const std::string key = "mesh.axes." + name;
    if (size < 0)
      refuse(key, fmt::format("{} = {}; the nearest valid size is 0 (the rest)", key, size));
    if (size == 0 && !rest.empty())
      refuse(key,
             fmt::format("{0} = 0, but \"{1}\" already takes the rest; the nearest valid size is 1",
                         key, rest));
    if (size == 0) rest = name;
    if (size > ranks || product > ranks)
      refuse(key, fmt::format("{} = {} does not fit {} ranks; the nearest valid size is 1", key,
                              size, ranks));
    product *= std::max<int64_t>(size, 1);
  }
  if (ranks % product != 0 || (rest.empty() && product != ranks))
    refuse("mesh.axes",
           fmt::format("the mesh axes hold {} ranks and the run has {}; set data = 0 (the rest) "
                       "or run {} ranks",
                       product, ranks, std::max(ranks / product, int64_t{1}) * product));
  int64_t stride = 1;
  for (const std::string& name : options.order) {
    const int64_t size = name == rest ? ranks / product : written_size(options.axes, name);
    axes_.push_back({name, size, stride});
    stride *= size;
    if (name == "data") axes_.push_back({"replica", 1, stride});
  }
}

const MeshAxis& Mesh::axis(const std::string& name) const {
  for (const MeshAxis& axis : axes_)
    if (axis.name == name) return axis;
  throw UserError(fmt::format("\"{}\" is no mesh axis; the nearest is \"{}\"", name,
                              nearest_choice(name, mesh_axis_names())));
}

int64_t Mesh::coordinate(int64_t rank, const std::string& name) const {
  const MeshAxis& found = axis(name);
  return rank / found.stride % found.size;
}

std::vector<int64_t> Mesh::group(int64_t rank, const std::string& name) const {
  const MeshAxis& found = axis(name);
  const int64_t first = rank - coordinate(rank, name) * found.stride;
  std::vector<int64_t> members;
  for (int64_t i = 0; i < found.size; ++i) members.push_back(first + i * found.stride);
  return members;
}

Mesh Mesh::with_replicas(int64_t replicas) const {
  Mesh cut = *this;
  for (MeshAxis& axis : cut.axes_) {
    if (axis.name == "data") {
      ensure(axis.size % replicas == 0, "mesh: replicas do not divide the axis data");
      axis.size /= replicas;
    } else if (axis.name == "replica") {
      axis.size = replicas;
      axis.stride /= replicas;
    }
  }
  return cut;
}

int64_t Mesh::data_ranks() const {
  return axis("data").size * axis("z").size * axis("replica").size;
}

Json mesh_json(const Mesh& mesh) {
  Json json = Json::object({});
  for (const MeshAxis& axis : mesh.axes())
    if (axis.name != "replica" || axis.size > 1) json[axis.name] = axis.size;
  return json;
}

}  // namespace strait
