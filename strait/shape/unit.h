// Units made of parameters.
#pragma once

#include <string>
#include <vector>

#include "strait/shape/shape.h"

namespace strait {

/// Assigns offsets: decayed parameters first, each group in the order given.
UnitShape make_unit(std::string name, const std::vector<ParameterShape>& parameters);

}  // namespace strait
