// The cores of a host as a tree of what they share (sockets, NUMA domains, caches), and its
// division among ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace strait {

/// A core, or several that share something; parts in the order in which the hardware has them.
struct CoreTree {
  std::string
      shared;  // what the parts have in common: "socket", "die", "numa", "l3", ...; "" = the host
  std::vector<CoreTree> parts;  // empty: this is one core
  std::vector<int> cpus;        // of a core: numbers of its logical processors, ascending

  int64_t num_cores() const;
  /// Of all cores, ascending.
  std::vector<int> all_cpus() const;
};

/// The cores of this host that its control groups leave to us, read by hwloc; none when this
/// program was built without hwloc, or hwloc finds nothing.
std::optional<CoreTree> read_core_tree();
/// The same of a machine that is not there, in hwloc's words: "numa:2 l3:2 core:4 pu:2". UserError
/// when they are none; without hwloc there is nothing to read them.
std::optional<CoreTree> synthetic_core_tree(const std::string& description);

/// What is left of a tree when only these logical processors may be used: none for no core. A core
/// with one of its processors left is a core.
std::optional<CoreTree> restrict_cores(const CoreTree& tree, const std::vector<int>& cpus);

/// Logical processors of each rank. Every rank gets the same number of whole cores, num_cores /
/// ranks of them; what does not divide is left to nobody. Shares are made inside the smallest parts
/// that hold them whole, and only of what is left there across parts, so that few of them straddle;
/// neighbouring ranks are neighbours. InternalError when there are fewer cores than ranks.
std::vector<std::vector<int>> divide_cores(const CoreTree& tree, int64_t ranks);

/// What some of a host's ranks share and others do not, and how many ranks, or groups of the level
/// below, do.
struct RankLevel {
  std::string shared;
  int64_t size;
  bool operator==(const RankLevel&) const = default;
};

/// The levels of ranks that keep to these logical processors, innermost first; the last, "" or what
/// all of them share, holds them all. A part of the tree makes a level where every rank lies inside
/// one part, neighbours together, and all parts that hold any are divided alike. One rank has no
/// level.
std::vector<RankLevel> rank_levels(const CoreTree& tree,
                                   const std::vector<std::vector<int>>& ranks);

}  // namespace strait
