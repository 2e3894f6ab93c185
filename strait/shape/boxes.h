// Parameters as boxes over the mesh axes x and y, and the unit that they form on a rank.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/shape/element_runs.h"
#include "strait/shape/shape.h"

namespace strait {

/// Place of a rank along an axis.
struct AxisPlace {
  int64_t size = 1, coordinate = 0;
};

/// A unit as every rank of the axes x and y holds it. Parameters of one section lie together:
/// decayed ones first, then those that are split over more, in the order of the unit.
struct LocalUnit {
  UnitShape shape;                      // local dims and offsets
  std::vector<ParameterShape> logical;  // the same parameters in the same order, whole
};

/// `x`, `y`: sizes of the axes. Where they are 1, the splits of parameters are dropped. Errors:
/// UserError with the key of the axis where a part cannot be cut evenly; InternalError for a split
/// of no dim, of parts that are not the dim, or of one dim over both axes.
LocalUnit localize(const UnitShape& unit, int64_t x, int64_t y);

/// Elements of the logical unit that a rank holds of a parameter of LocalUnit::logical, in local
/// order.
ElementRuns parameter_runs(const ParameterShape& logical, AxisPlace x, AxisPlace y);

}  // namespace strait
