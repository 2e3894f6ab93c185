#include "strait/strategy/grid/grid.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "strait/draft/segment_ops.h"
#include "strait/strategy/grid/weight_products.h"

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

/// The ranks that share blocks. `hides`: sums of gradients stand beside the products of weights.
struct Sharing {
  Axis x, y;
  bool hides = false;
  ModelShape shape;
  Dtype dtype;

  /// Ops that depend on the rank's place among those that share a block.
  void mark(Op& op) const {
    if (draft::works_on_segments(op) || op.kernel == &draft::kNormalizeAgain)
      op.group = x.sums() ? x.group : y.group;
  }

  /// Who sums what an op leaves in a slot.
  Axis axis_of(int slot) const {
    if (shape.splits_rows && draft::is_exchanged_by_rows(slot) && draft::is_partial_over_x(slot))
      return {};  // scattered
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

  /// The op, and behind it the sums of what it has made. Whether one of them is worth hiding.
  bool write(Op op, std::vector<Op>& ops) const {
    mark(op);
    std::vector<Op> sums;
    bool worth_hiding = false;
    for (const Operand& written : op.writes) {
      const bool made = op.kernel != nullptr && written.access == Access::kWrite;
      const Axis axis = made ? axis_of(written.slot) : Axis{};
      if (!axis.sums()) continue;
      sums.push_back(all_reduce(axis, written));
      worth_hiding = worth_hiding || is_gradient_sum(written.slot);
    }
    ops.push_back(std::move(op));
    ops.insert(ops.end(), sums.begin(), sums.end());
    return worth_hiding;
  }

  /// A transfer of rows. Whether it is worth hiding: a sum of gradients, or a gather.
  bool write_rows(Op op, std::vector<Op>& ops) const {
    const bool worth_hiding = gathers_rows(op) || is_gradient_sum(op.reads.front().slot);
    op.group = x.group;
    op.stream = x.stream;
    for (auto* operands : {&op.reads, &op.writes}) operands->front().slot = 0;
    ops.push_back(std::move(op));
    return worth_hiding;
  }

  static bool moves_rows(const Op& op) {
    return program::is_communication(op.kind) && op.group < 0;
  }
  static bool gathers_rows(const Op& op) {
    return moves_rows(op) && op.kind == program::OpKind::kAllGather;
  }

  void share(Visit& visit) const {
    const Visit before = visit;
    visit.ops.clear();
    WeightProducts products(before, shape, dtype);
    auto gathers = std::ranges::count_if(before.ops, gathers_rows);  // still to come
    for (const Op& op : before.ops) {
      if (op.kernel == &draft::kBackwardWeight) {
        for (const Op& rest : products.rest(op)) write(rest, visit.ops);
        continue;
      }
      products.note(op);
      gathers -= gathers_rows(op) ? 1 : 0;
      const bool worth_hiding = moves_rows(op) ? write_rows(op, visit.ops) : write(op, visit.ops);
      if (!worth_hiding || !hides) continue;
      // What a gather behind a scatter has to hide behind is left to it.
      const bool shares = moves_rows(op) && !gathers_rows(op) && gathers > 0;
      for (const Op& ready : products.take_ready(shares ? 1 : SIZE_MAX)) write(ready, visit.ops);
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

void grid(draft::Draft& draft, const ModelShape& shape, const Cluster& cluster,
          const draft::StepOptions& options) {
  if (!draft.schedule.micro_step) return;
  const Axis x = axis_of(draft, cluster, "x");
  const Sharing sharing{x, axis_of(draft, cluster, "y"), options.hides_sums, shape, options.dtype};
  if (!sharing.x.sums() && !sharing.y.sums()) return;
  for (const int own : draft.own_rows) {
    program::ValueArray& array = draft.program.arrays[static_cast<size_t>(own)];
    const int64_t elements = array.partition.elements;
    array.group = sharing.x.group;
    array.partition = {elements * shape.x, elements};
  }
  draft::rewrite_visits(draft, [sharing](Visit& visit) { sharing.share(visit); });
}

}  // namespace strait::strategy
