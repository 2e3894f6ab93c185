// Counts what leaves the virtual links, by the transfers of the collectives' schedules.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "strait/collective/schedule.h"
#include "strait/program/program.h"
#include "strait/topology/cluster.h"

namespace strait::sim {

/// Schedules are made of one group of every kind that lies alike on the levels, and counted as
/// collective::elements_by_level does: exact however uneven the parts are, without walking all
/// pairs of ranks. Answers are kept; the programs must outlive it.
class LinkCounter {
 public:
  explicit LinkCounter(const Cluster& cluster) : cluster_(cluster) {}

  /// Bytes by level that one execution of a transfer puts on the links, all ranks of the program's
  /// class together. A collective is counted in the class of its first member, a message in that of
  /// its sender. `peer`: of the op, evaluated. First time O(ranks * levels).
  const std::vector<int64_t>& bytes(const program::Program& program, const program::Op& op,
                                    int64_t peer);

 private:
  using Levels = std::vector<int64_t>;
  /// Groups that lie alike: how many members share each group of each level, in order.
  struct Kind {
    std::vector<int64_t> members;  // of the first group found
    bool even = false;
  };
  struct Instance {
    int64_t base = 0;
    int kind = 0;
  };
  const std::vector<Instance>& instances(const program::Program& program, int group);
  int kind_of(const std::vector<int64_t>& members);
  void add_messages(const program::Program& program, const program::Op& op, int64_t peer,
                    Levels& elements) const;
  void add_collectives(const program::Program& program, const program::Op& op, Levels& elements);
  const Levels& per_element(const collective::Request& request, int kind);

  const Cluster& cluster_;
  std::vector<Kind> kinds_;
  std::map<std::vector<int64_t>, int> kind_numbers_;
  std::map<std::pair<const program::Program*, int>, std::vector<Instance>> instances_;
  /// By members that a shift skips, and kind.
  std::map<std::tuple<collective::Operation, collective::Algorithm, int64_t, int>, Levels>
      per_element_;
  std::map<std::pair<const program::Op*, int64_t>, Levels> bytes_;
};

}  // namespace strait::sim
