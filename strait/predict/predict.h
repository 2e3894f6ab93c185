// What the readers of programs say of a design: of its step or, where replicas agree rarely, of the
// mean step of a round.
#pragma once

#include <cstdint>
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

/// Seconds of the mean step if no link took any time: utilisation is these over the mean step's.
double unlimited_seconds(const strategy::Design& design);

/// The most bytes that a rank sends for one border of a round, mean over ranks; without rounds,
/// what it sends in a step.
int64_t bytes_in_flight(const strategy::Design& design);

/// As cost::price.
cost::Cost price(const strategy::Design& design);

/// Peaks by rank class, borders included; of planned batches the higher one of the batch that
/// stands for all and of the widest.
std::vector<program::MemoryUse> peak_memories(const strategy::Design& design);
/// The same of one rank.
program::MemoryUse peak_memory(const strategy::Design& design, int64_t rank);

}  // namespace strait::predict
