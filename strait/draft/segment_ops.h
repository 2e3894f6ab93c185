// Operations over ranges of a transformer block's segments. What a range reads and writes
// (shape/segment.h) decides their operands: of bundles and of what enters and leaves a block each
// has one, and whatever else passes from one range to the next is a value of its own.
#pragma once

#include <span>
#include <vector>

#include "strait/draft/block_kernels.h"
#include "strait/draft/step_options.h"
#include "strait/program/program.h"
#include "strait/shape/segment.h"
#include "strait/shape/shape.h"

namespace strait::draft {

/// An operand of a kernel, and what an op does to it.
struct OperandUse {
  int slot = 0;
  program::Access access = program::Access::kRead;
};

/// Which values of a block are operands of their own.
struct Places {
  bool keeps = true;         // a forward keeps what the backward needs
  bool splits_rows = false;  // what ranks of x exchange is in no bundle
  bool up_apart = false;   // what is kept of up is not in the saved bundle: it ends before the rest
  bool unbundled = false;  // no value of a backward is in a bundle: each ends for itself
};
/// As ops of one phase have them, told from their operands. Of ranges that do not use what a place
/// is about it says whatever leaves them as they are.
Places places_in(std::span<const program::Op> ops);

/// The operands of an op over a range, by slot, but for weights and gradients of the unit.
std::vector<OperandUse> segment_operands(SegmentRange range, Phase phase, const Places& places);
/// Those of bundle_values that lie in a bundle where rows are split, too.
const ValueSet& product_values();
/// The values of a block that lie in the operand of a slot.
ValueSet values_in(int slot);
/// Whether a slot is for what passes inside a block, between its ranges.
inline bool is_inside_block(int slot) { return slot >= kBundle; }
/// Whether a slot is for what the part of backward_weight reads that may wait.
bool is_deferred(int slot);
/// Whether a slot is for a value of which each rank of the axis makes a part.
bool is_partial_over_x(int slot);
bool is_partial_over_y(int slot);
/// Whether a slot is for a value of which ranks of x exchange rows, where these are split.
bool is_exchanged_by_rows(int slot);

/// The operand in a slot, of the first op that has one; or nullptr.
const program::Operand* find_operand(std::span<const program::Op> ops, int slot);

const program::Kernel& segment_kernel(Phase phase);
/// The same for rows; not of backward_weight, which sums over them.
const program::Kernel& rows_kernel(Phase phase);
/// Whether an op works on a range of segments; phase_of and range_of are for those that do.
bool works_on_segments(const program::Op& op);
Phase phase_of(const program::Op& op);
SegmentRange range_of(const program::Op& op);

/// Makes `op` one over another range, with those of the operands of `from` that it then has. Where
/// rows are split, all of them work on a rank's rows, or none does.
void set_range(program::Op& op, SegmentRange range, std::span<const program::Op> from);

/// Whether an op does some rows alone, and which.
bool works_on_rows(const program::Op& op);
program::IntegerRange rows_of(const program::Op& op);

/// Of a micro-batch on a rank.
BlockExtent extent_of(const ModelShape& shape, const StepOptions& options);

/// Sets floating-point operations and workspace of an op on a block that has its other attributes
/// and its operands. Those of rows are in proportion to their number.
void price(program::Op& op, const ModelShape& shape, int64_t block, Dtype dtype);

}  // namespace strait::draft
