// The resolved plan that train and simulate print before anything runs.
#pragma once

#include <string>
#include <vector>

#include "strait/cost/cost.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"

namespace strait::cli {

/// Model, ranks, placement and groups, predicted step time, bytes per level, memory: one line each.
/// `corpus`: the one that the design was made with, if any.
std::vector<std::string> plan_lines(const strategy::Design& design, const sim::Result& simulated,
                                    const cost::Cost& cost, const Corpus* corpus = nullptr);

/// Says that a predicted MFU is above 1, and of which peak; "" where it is not.
std::string peak_warning(double utilization, const Cluster& cluster, Dtype dtype);

/// What of the run has no effect: steps on the model that is saved, codecs of what is not sent,
/// windows as long as the context. One line each.
std::vector<std::string> effect_warnings(const strategy::Design& design);

/// "12.3 MB", SI.
std::string bytes_text(double bytes);
/// "1.23 ms".
std::string seconds_text(double seconds);

}  // namespace strait::cli
