// The inner loops of the threads backend: copies, and sums of several sources in one pass.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/base/dtype.h"

namespace strait::comm {

/// Copies `bytes` bytes. Equal pointers cost nothing; otherwise the ranges must not overlap. Large
/// copies use non-temporal stores where the processor has them.
void copy_bytes(const void* source, void* destination, int64_t bytes);

/// True for the types that sum_in_order can add: u8, i32, i64, bf16, fp32, fp64.
bool is_summable(Dtype dtype);

/// destination[i] = ((sources[0][i] + sources[1][i]) + ...), or that added to destination[i] when
/// `accumulate`. Integers wrap; bf16 is added in fp32 and rounded once. A source may be equal to
/// the destination, but not overlap it otherwise. Reads every source and writes the destination
/// once; deterministic. Throws UserError for other types.
void sum_in_order(Dtype dtype, const std::vector<const void*>& sources, void* destination,
                  int64_t elements, bool accumulate);

}  // namespace strait::comm
