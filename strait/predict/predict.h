// What the readers of programs say of a design: of its step or, where replicas agree rarely, of the
// mean step of a round.
#pragma once

#include <vector>

#include "strait/cost/cost.h"
#include "strait/program/memory.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"

namespace strait::predict {

/// As sim::simulate. Spans in `recorders`, and events, are those of all steps that are simulated:
/// those of a round in which replicas exchange something.
sim::Result simulate(const strategy::Design& design,
                     std::vector<trace::Recorder>* recorders = nullptr);

/// As cost::price.
cost::Cost price(const strategy::Design& design);

/// Peaks by rank class, borders included.
std::vector<program::MemoryUse> peak_memories(const strategy::Design& design);

}  // namespace strait::predict
