// What decides the numbers of a run's blocks besides their buffers.
#pragma once

#include "strait/model/block.h"
#include "strait/strategy/compose/design.h"

namespace strait::execute {

/// Gradients are means over the tokens of the global batch.
model::Settings model_settings(const strategy::Design& design);

}  // namespace strait::execute
