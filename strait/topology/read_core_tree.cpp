#include "strait/base/errors.h"
#include "strait/topology/core_tree.h"

#ifdef STRAIT_HWLOC

#include <hwloc.h>

#include <memory>
#include <string>

namespace strait {
namespace {

struct Destroy {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, Destroy>;

std::vector<int> cpus_of(const hwloc_obj& object) {
  std::vector<int> cpus;
  for (int cpu = hwloc_bitmap_first(object.cpuset); cpu >= 0;
       cpu = hwloc_bitmap_next(object.cpuset, cpu))
    cpus.push_back(cpu);
  return cpus;
}

std::string name_of(hwloc_obj_type_t type) {
  switch (type) {
    case HWLOC_OBJ_PACKAGE:
      return "socket";
    case HWLOC_OBJ_DIE:
      return "die";
    case HWLOC_OBJ_GROUP:
      return "numa";
    case HWLOC_OBJ_L2CACHE:
      return "l2";
    case HWLOC_OBJ_L3CACHE:
      return "l3";
    case HWLOC_OBJ_L4CACHE:
      return "l4";
    default:
      return "";
  }
}

/// NUMA domains hang beside the tree of hwloc 2, but where several share a socket a group holds
/// each one's cores.
CoreTree tree_of(const hwloc_obj& object) {
  CoreTree tree;
  if (object.type == HWLOC_OBJ_CORE || object.type == HWLOC_OBJ_PU) {
    tree.cpus = cpus_of(object);
    return tree;
  }
  tree.shared = name_of(object.type);
  for (unsigned at = 0; at < object.arity; ++at)
    if (!hwloc_bitmap_iszero(object.children[at]->cpuset))
      tree.parts.push_back(tree_of(*object.children[at]));
  return tree;
}

std::optional<CoreTree> load(const std::string* description) {
  hwloc_topology_t made = nullptr;
  if (hwloc_topology_init(&made) != 0) return std::nullopt;
  const Topology topology(made);
  if (description != nullptr && hwloc_topology_set_synthetic(made, description->c_str()) != 0)
    throw UserError("hwloc cannot read the topology \"" + *description + "\"");
  if (hwloc_topology_load(made) != 0) return std::nullopt;
  CoreTree tree = tree_of(*hwloc_get_root_obj(made));
  if (tree.parts.empty() && tree.cpus.empty()) return std::nullopt;
  return tree;
}

}  // namespace

std::optional<CoreTree> read_core_tree() { return load(nullptr); }

std::optional<CoreTree> synthetic_core_tree(const std::string& description) {
  return load(&description);
}

}  // namespace strait

#else

namespace strait {

std::optional<CoreTree> read_core_tree() { return std::nullopt; }
std::optional<CoreTree> synthetic_core_tree(const std::string&) { return std::nullopt; }

}  // namespace strait

#endif
