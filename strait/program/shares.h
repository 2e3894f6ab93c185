// Joined values of a group: what its ranks have of one value, share by share.
#pragma once

#include <cstdint>

#include "strait/program/program.h"

namespace strait::program {

// Joined values (ValueArray::joined) of a group of n ranks are numbered from a rank's own on. The n
// equal shares of partition.elements lie in the order of ranks and are cut alike, each into count /
// n parts of `grain`; value i is part i mod (count / n) of the share of the rank i / (count / n)
// positions behind, in a circle. So number i is another place on every rank, but all values
// together are one, the same everywhere, and those below count / n are the rank's own share. A
// kernel names all of them or its own, or, as its table entry says, a part.

/// Where value `index` of joined ones begins among them, of a group or not.
int64_t joined_begin(const Program& program, const ValueArray& array, int64_t rank, int64_t index);

}  // namespace strait::program
