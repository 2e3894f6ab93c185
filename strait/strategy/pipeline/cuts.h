// Where a chain is cut into runs of neighbouring blocks that take equally long.
#pragma once

#include <cstdint>
#include <vector>

namespace strait::strategy {

/// The first block of every run but the first. `block_seconds`: of all blocks, the first and the
/// last of which (embedding, head) stay with their neighbours: every run has one of those between.
/// The longest run is as short as it can be; of such cuts those whose runs are near the mean of
/// what is left. Precondition: runs <= blocks between. Cost: O(blocks).
std::vector<int64_t> balanced_cuts(const std::vector<double>& block_seconds, int64_t runs);

}  // namespace strait::strategy
