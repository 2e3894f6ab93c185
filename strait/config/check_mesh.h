// The axes of the mesh against the ranks, the model and the cluster. Each function throws UserError
// with file, line, key and the nearest valid size.
#pragma once

#include <cstdint>

#include "strait/config/run.h"
#include "strait/topology/cluster.h"

namespace strait {

/// Every axis but data divides what the axes before it leave of the ranks; data is the rest, or 0.
void check_mesh_sizes(const Run& run, int64_t ranks);

/// Axis x divides what it splits of the model.
void check_mesh_model(const Run& run);

/// No axis ends within a group of a level. `cluster` is that of the run; sizes have been checked.
void check_mesh_levels(const Run& run, const Cluster& cluster);

}  // namespace strait
