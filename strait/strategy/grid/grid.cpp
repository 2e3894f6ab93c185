#include "strait/strategy/grid/grid.h"

#include <utility>
#include <vector>

#include "strait/draft/segment_ops.h"

namespace strait::strategy {
namespace {

using draft::MicroStep;
using draft::Visit;
using program::Access;
using program::Op;
using program::Operand;

/// The ranks that share blocks, and the lane of their sums.
struct Sharing {
  int group = -1, stream = -1;

  /// What depends on the rank's place among those that share a block: which heads it has, and
  /// whether it counts.
  void mark(Op& op) const {
    const bool counts = op.kernel == &draft::kLoad || op.kernel == &draft::kForwardBackward ||
                        op.kernel == &draft::kForwardLoss;
    if (counts || draft::works_on_segments(op)) op.group = group;
  }

  Op all_reduce(const Operand& part) const {
    Op op;
    op.kind = program::OpKind::kAllReduce;
    op.group = group;
    op.stream = stream;
    op.reads = {program::as(part, Access::kRead)};
    op.writes = {program::as(part, Access::kWrite)};
    return op;
  }

  void share(Visit& visit) const {
    for (Op& op : std::exchange(visit.ops, {})) {
      mark(op);
      std::vector<Op> sums;
      if (draft::works_on_segments(op))
        for (const Operand& written : op.writes)
          if (draft::is_partial_over_x(written.slot)) sums.push_back(all_reduce(written));
      visit.ops.push_back(std::move(op));
      visit.ops.insert(visit.ops.end(), sums.begin(), sums.end());
    }
  }
};

}  // namespace

void grid(draft::Draft& draft, const Cluster& cluster) {
  const MeshAxis& axis = draft.mesh.axis("x");
  if (axis.size == 1 || !draft.schedule.micro_step) return;
  const int group = draft::add_group(draft.program, cluster, {"x", axis.size, axis.stride});
  const Sharing sharing{group, draft::add_lane(draft.program, cluster, group)};
  draft.schedule.micro_step = [whole = std::move(draft.schedule.micro_step), sharing](
                                  int64_t number, const program::Index& later) {
    MicroStep step = whole(number, later);
    for (Op& op : step.begin) sharing.mark(op);
    for (Visit& visit : step.visits) sharing.share(visit);
    return step;
  };
}

}  // namespace strait::strategy
