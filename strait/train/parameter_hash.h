// The hash of all master weights of a running job, the same for any world and placement with equal bits.
#pragma once

#include <string>

#include "strait/runtime/interpreter.h"
#include "strait/strategy/compose/design.h"

namespace strait::train {

/// XXH3-128 of the master weights, parameters in the order of their names, unpadded. Collective: all ranks
/// call it; rank 0 gets the hash, the others "". Gathers one unit at a time. State must be drained.
std::string parameter_hash(const strategy::Design& design, const runtime::Site& site);

}  // namespace strait::train
