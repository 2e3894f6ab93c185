// How the vector of a communication op is split over its group on one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// Consecutive parts of a partition: what one group moves, one part per member.
struct Split {
  Partition partition;
  int64_t first = 0;  // part of the member at position 0
  int64_t parts = 0;
  int64_t begin(int64_t position) const { return partition.begin(first + position); }
  int64_t count(int64_t position) const { return partition.count(first + position); }
  /// Of the whole vector.
  int64_t elements() const { return partition.begin(first + parts) - partition.begin(first); }
  bool operator==(const Split&) const = default;
};

/// All-gather and reduce-scatter move the parts of the op's own partition that the group of `rank`
/// shares; all-to-all all of its parts. All-reduce takes the whole operand as this rank holds it,
/// in equal parts of a multiple of 16 elements; broadcast, send and receive move it in one part.
/// Empty for a barrier.
Split transfer_split(const Program& program, const Op& op, int64_t rank);

/// The array that carries the data: the source, or the destination of a receive.
const ValueArray& transfer_array(const Program& program, const Op& op);

/// Elements from the beginning of the operand's buffer to what the op moves: an all-gather or
/// reduce-scatter may work on a part of a value that holds more (in place; the hops of nested
/// shards).
int64_t source_offset(const Program& program, const Op& op, int64_t rank);
int64_t destination_offset(const Program& program, const Op& op, int64_t rank);

/// Bytes of one piece of a codec in the buffers that `op` moves: the finest part into which their
/// values are cut; 0 when it moves numbers. Read from the values, so that it can be held against
/// op.piece_bytes.
int64_t piece_length(const Program& program, const Op& op);

/// Scales and the like among `bytes` that an op sends.
inline int64_t metadata_in(const Op& op, int64_t bytes) {
  return op.piece_bytes > 0 ? bytes / op.piece_bytes * op.metadata_bytes : 0;
}

/// By array: whether some communication reads or writes it, so that other ranks must reach it.
std::vector<bool> transferred_arrays(const Program& program);

}  // namespace strait::program
