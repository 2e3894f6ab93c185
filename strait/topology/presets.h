// Named clusters: levels of links and rates of one device, each figure with its source.
#pragma once

#include <string>
#include <vector>

#include "strait/topology/cluster.h"

namespace strait {

/// Levels of a preset, innermost first; the outermost takes the rest. UserError (key
/// cluster.preset) names the nearest preset.
std::vector<LevelOptions> preset_levels(const std::string& preset);

/// A Cluster with the name and the rates of a preset, and no levels yet. UserError as above.
Cluster cluster_rates(const std::string& preset);

}  // namespace strait
