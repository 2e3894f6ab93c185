// What passes ask that take products apart.
#pragma once

#include <algorithm>

#include "strait/draft/segment_ops.h"
#include "strait/program/program.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

inline bool same_value(const program::Operand& a, const program::Operand& b) {
  return a.array == b.array && a.index == b.index;
}

inline bool names(const program::Op& op, const program::Operand& value) {
  const auto is_it = [&](const program::Operand& operand) { return same_value(operand, value); };
  return std::ranges::any_of(op.reads, is_it) || std::ranges::any_of(op.writes, is_it);
}

/// Of the micro-batch.
inline int64_t rows_in(const program::Op& op) {
  return program::attribute<int64_t>(op, draft::kBatch) *
         program::attribute<int64_t>(op, draft::kLength);
}

/// Makes `part` one of a range of the op's segments, with those of its operands that this has.
inline void take_range(program::Op& part, SegmentRange range, const program::Op& op, bool splits) {
  std::get<program::IntegerRange>(part.attributes[draft::kSegments]) = {range.begin, range.end};
  part.reads.clear();
  part.writes.clear();
  draft::Places places = draft::places_in({&op, 1});
  places.splits_rows = splits;
  for (const auto& [slot, access] : draft::segment_operands(range, draft::phase_of(op), places)) {
    const bool read = program::operand_in(op.reads, slot) != nullptr;
    for (const program::Operand& operand : read ? op.reads : op.writes)
      if (operand.slot == slot)
        draft::add_operand(part, operand.array, operand.index, access, slot);
  }
}

/// Seconds of a product of all rows, and of each further call, which passes over the weights again:
/// where nobody has measured that, reads and packs them.
struct ProductSeconds {
  double whole = 0, call = 0;
};
inline ProductSeconds product_seconds(const program::Op& product, Dtype dtype,
                                      const Cluster& cluster) {
  const double weights = draft::weights_of(product), rate = cluster.memory_bytes_per_second;
  double call = cluster.weight_seconds(dtype, weights);
  if (call == 0 && rate > 0) call = 2 * weights * static_cast<double>(dtype_bytes(dtype)) / rate;
  return {
      cluster.block_seconds(dtype, program::attribute<double>(product, draft::kFlops), 0, weights),
      call};
}

/// Seconds that an op computes segments of a block; 0 for any other.
inline double segment_seconds(const program::Op& op, Dtype dtype, const Cluster& cluster) {
  if (!draft::works_on_segments(op)) return 0;
  return cluster.block_seconds(dtype, program::attribute<double>(op, draft::kFlops),
                               program::attribute<double>(op, draft::kAttentionFlops),
                               draft::weights_of(op));
}

/// An op of a visit to a block that does a range of its segments.
inline program::Op part_of(const program::Op& op, SegmentRange range, int64_t block,
                           const ModelShape& shape, Dtype dtype) {
  program::Op part = op;
  take_range(part, range, op, shape.splits_rows);
  draft::price(part, shape, block, dtype);
  return part;
}

}  // namespace strait::strategy
