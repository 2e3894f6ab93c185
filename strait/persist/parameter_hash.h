// The hash of all weights of a run, whatever its ranks hold of them.
#pragma once

#include <string>

#include "strait/persist/unit_state.h"

namespace strait::persist {

/// checkpoint::parameter_hash of the weights that all ranks hold, on rank 0; "" elsewhere. All
/// ranks call it when no transfer is in flight. Cost: a unit is collected once for each group of
/// its parameters that follow one another by name; rank 0 holds one at a time.
std::string parameter_hash(const UnitState& units, const ModelShape& shape,
                           const runtime::Site& site);

}  // namespace strait::persist
