// How the vector of a communication op is split over its group on one rank.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/program/program.h"

namespace strait::program {

/// All-gather, reduce-scatter and all-to-all are split by the op's own partition. All-reduce takes
/// the whole operand as this rank holds it, in equal parts of a multiple of 16 elements; broadcast,
/// send and receive move it in one part. Empty for a barrier.
Partition transfer_partition(const Program& program, const Op& op, int64_t rank);

/// The array that carries the data: the source, or the destination of a receive.
const ValueArray& transfer_array(const Program& program, const Op& op);

/// By array: whether some communication reads or writes it, so that other ranks must reach it.
std::vector<bool> transferred_arrays(const Program& program);

}  // namespace strait::program
