#include "strait/strategy/grid/grid.h"

#include <utility>
#include <vector>

#include "strait/draft/segment_ops.h"

namespace strait::strategy {
namespace {

using draft::Visit;
using program::Access;
using program::Op;
using program::Operand;

/// The ranks that sum over an axis, and the lane of their sums; none: the axis has one rank.
struct Axis {
  int group = -1, stream = -1;
  bool sums() const { return group >= 0; }
};

/// The ranks that share blocks.
struct Sharing {
  Axis x, y;

  /// Ops that depend on the rank's place among those that share a block.
  void mark(Op& op) const {
    if (draft::works_on_segments(op)) op.group = x.sums() ? x.group : y.group;
  }

  /// Who sums what an op leaves in a slot.
  Axis axis_of(int slot) const {
    if (draft::is_partial_over_x(slot)) return x;
    return draft::is_partial_over_y(slot) ? y : Axis{};
  }

  static Op all_reduce(const Axis& axis, const Operand& part) {
    Op op;
    op.kind = program::OpKind::kAllReduce;
    op.group = axis.group;
    op.stream = axis.stream;
    op.reads = {program::as(part, Access::kRead)};
    op.writes = {program::as(part, Access::kWrite)};
    return op;
  }

  void share(Visit& visit) const {
    for (Op& op : std::exchange(visit.ops, {})) {
      mark(op);
      std::vector<Op> sums;
      for (const Operand& written : op.writes) {
        const bool made = op.kernel != nullptr && written.access == Access::kWrite;
        const Axis axis = made ? axis_of(written.slot) : Axis{};
        if (axis.sums()) sums.push_back(all_reduce(axis, written));
      }
      visit.ops.push_back(std::move(op));
      visit.ops.insert(visit.ops.end(), sums.begin(), sums.end());
    }
  }
};

Axis axis_of(draft::Draft& draft, const Cluster& cluster, const char* name) {
  const MeshAxis& axis = draft.mesh.axis(name);
  if (axis.size == 1) return {};
  const int group = draft::add_group(draft.program, cluster, {name, axis.size, axis.stride});
  return {group, draft::add_lane(draft.program, cluster, group)};
}

}  // namespace

void grid(draft::Draft& draft, const Cluster& cluster) {
  if (!draft.schedule.micro_step) return;
  const Axis x = axis_of(draft, cluster, "x");
  const Sharing sharing{x, axis_of(draft, cluster, "y")};
  if (!sharing.x.sums() && !sharing.y.sums()) return;
  draft::rewrite_visits(draft, [sharing](Visit& visit) { sharing.share(visit); });
}

}  // namespace strait::strategy
