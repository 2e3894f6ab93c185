// How a parameter is cut over an axis of the mesh that splits matrices.
#pragma once

#include <cstdint>
#include <vector>

namespace strait {

/// Dim `dim` consists of consecutive parts of these extents (the rows of queries, keys, values),
/// each of which is cut evenly over the axis: a rank holds its share of every part, one behind the
/// other. dim < 0: not split, every rank of the axis holds the whole. No parts: the dim is one
/// part.
struct AxisSplit {
  int dim = -1;
  std::vector<int64_t> parts = {};
};

/// Over the axes x and y, which split different dims.
struct ParameterSplit {
  AxisSplit x, y;
};

}  // namespace strait
