// The hybrid of whole and shared documents (Megatron's dynamic context parallelism). Internal to
// plans.
#pragma once

#include "strait/sequence/partition.h"

namespace strait::sequence {

/// Longest first, each to the fewest neighbours, a power of two, of which every one gets at most
/// the mean rank's squares of it: to the run whose fullest rank has the fewest squares among those
/// with room. Where none has room, to more neighbours, else to fewer; a document that fits nowhere
/// exceeds the capacity.
void place_hybrid(const Batch& batch, int64_t capacity, Plan& plan);

}  // namespace strait::sequence
