#include "strait/strategy/fuse/fuse.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "strait/draft/segment_ops.h"

namespace strait::strategy {
namespace {

using draft::Visit;
using program::Op;
using program::Operand;

constexpr SegmentRange kBlock = {};

bool is_same(SegmentRange a, SegmentRange b) { return a.begin == b.begin && a.end == b.end; }

program::IntegerRange& range_attribute(Op& op) {
  return std::get<program::IntegerRange>(op.attributes[draft::kSegments]);
}

/// Pieces of the fused block, from its first on, that a range joins.
std::optional<int> fused_pieces(SegmentRange range) {
  for (int pieces = 1; pieces <= 4; ++pieces)
    if (is_same(range, segments_of_pieces(0, pieces))) return pieces;
  return std::nullopt;
}

/// Whether `next` does the segments that come behind those of `op` in their phase.
bool continues(const Op& op, const Op& next) {
  if (!draft::works_on_segments(op) || op.kernel != next.kernel || op.group != next.group)
    return false;
  if (op.attributes[draft::kLength] != next.attributes[draft::kLength]) return false;
  const SegmentRange range = draft::range_of(op), after = draft::range_of(next);
  const bool forward = draft::phase_of(op) == Phase::kForward;
  return forward ? range.end == after.begin : range.begin == after.end;
}

/// One op that does what a run of ops does, with the operands that its range has.
Op join(std::span<const Op> run) {
  Op op = run.front();
  const SegmentRange first = draft::range_of(op), last = draft::range_of(run.back());
  draft::set_range(op, {std::min(first.begin, last.begin), std::max(first.end, last.end)}, run);
  return op;
}

bool is_inside(const Operand& operand) { return draft::is_inside_block(operand.slot); }

/// Pieces of the fused block that do the same as a forward: nothing passes from it to other ops of
/// its block, and no other rank shares that.
std::optional<int> fused_forward(const Op& op) {
  const bool alone = op.kernel == &draft::kForwardSegments && op.group < 0 &&
                     std::ranges::none_of(op.writes, is_inside);
  return alone ? fused_pieces(draft::range_of(op)) : std::nullopt;
}

/// Whether both halves of a block's backward follow each other.
bool fuses_backward(const Op& input, const Op& weight) {
  return input.kernel == &draft::kBackwardInput && weight.kernel == &draft::kBackwardWeight &&
         input.group < 0 && is_same(draft::range_of(input), kBlock) &&
         is_same(draft::range_of(weight), kBlock);
}

/// A fused op in place of one over a range.
void become(Op& op, const program::Kernel& kernel, int pieces) {
  op.kernel = &kernel;
  range_attribute(op) = {0, pieces};
  std::erase_if(op.reads, is_inside);
  std::erase_if(op.writes, is_inside);
}

bool names(const std::vector<Op>& ops, const Operand& value) {
  const auto is_it = [&](const Operand& operand) {
    return operand.array == value.array && operand.index == value.index;
  };
  return std::ranges::any_of(ops, [&](const Op& op) {
    return std::ranges::any_of(op.reads, is_it) || std::ranges::any_of(op.writes, is_it);
  });
}

/// Joins the ops of visits.
class Fuser {
 public:
  Fuser(const ModelShape& shape, Dtype dtype) : shape_(shape), dtype_(dtype) {}

  void apply(Visit& visit) const {
    if (!std::ranges::any_of(visit.ops, draft::works_on_segments)) return;
    const std::vector<Op> before = std::exchange(visit.ops, {});
    for (size_t begin = 0, end = 0; begin < before.size(); begin = end) {
      for (end = begin + 1; end < before.size() && continues(before[end - 1], before[end]);) ++end;
      add(visit, std::span(before).subspan(begin, end - begin));
    }
    std::erase_if(visit.frees, [&](const Operand& freed) {
      return names(before, freed) && !names(visit.ops, freed);
    });
  }

 private:
  void add(Visit& visit, std::span<const Op> run) const {
    if (run.size() == 1 && !visit.ops.empty() && fuses_backward(visit.ops.back(), run.front())) {
      become(visit.ops.back(), draft::kBackward, fused_pieces(kBlock).value());
      return price(visit.ops.back(), visit);
    }
    Op op = run.size() == 1 ? run.front() : join(run);
    const std::optional<int> pieces = fused_forward(op);
    if (pieces) become(op, draft::kForward, *pieces);
    if (pieces || run.size() > 1) price(op, visit);
    visit.ops.push_back(std::move(op));
  }

  void price(Op& op, const Visit& visit) const { draft::price(op, shape_, visit.block, dtype_); }

  const ModelShape& shape_;
  Dtype dtype_;
};

}  // namespace

void fuse(draft::Draft& draft, const ModelShape& shape, const draft::StepOptions& options) {
  if (!draft.schedule.micro_step) return;
  draft::rewrite_visits(
      draft, [fuser = Fuser(shape, options.dtype)](Visit& visit) { fuser.apply(visit); });
}

}  // namespace strait::strategy
