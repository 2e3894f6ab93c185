// The pass that places training state: gathers weights before they are used, reduces gradients
// after they are made, and says where the state of each unit lies when the step ends. One table of
// placements; no other pass knows them.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"
#include "strait/strategy/sharding/placement.h"
#include "strait/topology/cluster.h"

namespace strait::strategy {

/// Declares groups, lanes and the values of state, and writes the micro-steps of the draft into its
/// body.
void place(draft::Draft& draft, const ModelShape& shape, const Placement& placement,
           const Cluster& cluster, const draft::StepOptions& options);

}  // namespace strait::strategy
