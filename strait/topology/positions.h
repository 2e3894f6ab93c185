// A cluster as the data-parallel ranks of a mesh see it.
#pragma once

#include "strait/topology/cluster.h"
#include "strait/topology/mesh.h"

namespace strait {

/// The cluster with the positions of `mesh` as its ranks. Axes that lie inside of the data-parallel
/// ones, such as x, are taken out of the fan-outs from the innermost level on; those outside of
/// them (stages) from the outermost level on. Levels that are left with a fan-out of one are
/// dropped. Only sizes and names mean anything in the result: spans of a placement are groups of
/// its levels. Without such axes it is `cluster`.
///
/// Errors: UserError (key mesh.axes.x, y or stage), where an axis would end within a group of some
/// level; it names the nearest valid size.
Cluster positions_of(const Cluster& cluster, const Mesh& mesh);

}  // namespace strait
