// Whether a run's memory is there, asked before any of it is taken.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/strategy/compose/design.h"

namespace strait {

/// NothingFits when these ranks at their peak (program/memory.h) need more than `has_bytes`, the
/// memory of this computer. The message names both, and the largest micro-batch that would fit,
/// with recomputation if need be. What is left beside them, per rank here.
int64_t require_memory(const strategy::Design& design, const std::vector<int64_t>& ranks_here,
                       int64_t has_bytes);

}  // namespace strait
