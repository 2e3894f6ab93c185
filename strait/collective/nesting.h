// Groups inside groups, and who passes a part on: the tree of the hierarchical algorithms.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/topology/cluster.h"

namespace strait::collective {

/// [level][position] = number of the group that holds the position, as in Request::nest.
using Nest = std::vector<std::vector<int64_t>>;

/// UserError unless every level names a group for every one of `members`, positions of one group
/// stand together, and each group lies inside one group of the next level.
void check_nest(const Nest& nest, int64_t members);

/// The levels of `cluster` that part `members` (ascending ranks) into more than one group and not
/// into single members; equal ones once. Empty when hierarchical would be direct.
Nest nest_of(const Cluster& cluster, const std::vector<int64_t>& members);

/// For every part (named by its owner) each group has one holder: the owner where it is inside,
/// otherwise the member in the same place, as far as there is one. A holder of a group is the
/// holder of the smaller group inside it that it belongs to. Level levels() - 1 is the whole.
class Nesting {
 public:
  Nesting(const Nest& nest, int64_t members);

  int64_t levels() const { return static_cast<int64_t>(groups_.size()); }
  /// Holder of `part` in the group of `level` to which `member` belongs. O(levels).
  int64_t holder(int64_t part, int64_t member, int64_t level) const;
  /// Holders of `part` in the groups (members, at level 0) that form the group of `level` to which
  /// `member` belongs, ascending. O(group).
  std::vector<int64_t> children(int64_t part, int64_t member, int64_t level) const;

  struct Parent {
    int64_t member = 0;  // who hands the part to `member`
    int64_t level = 0;   // of the smallest group that holds both
  };
  /// The owner itself is its own parent at level 0.
  Parent parent(int64_t part, int64_t member) const;

 private:
  struct Group {
    int64_t begin = 0, end = 0;  // positions
  };
  const Group& group(int64_t member, int64_t level) const;

  std::vector<std::vector<Group>> groups_;    // [level]
  std::vector<std::vector<int64_t>> number_;  // [level][position]: index into groups_[level]
};

}  // namespace strait::collective
