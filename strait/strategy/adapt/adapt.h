// The pass that keeps what a choice of settings per layer looks at: sums of reduced gradients.
#pragma once

#include "strait/draft/draft.h"
#include "strait/strategy/adapt/policy.h"

namespace strait::strategy {

/// What checkpoints call the sums.
inline constexpr const char* kGatheredState = "gathered_gradient";

/// Declares, beside every gradient, a resident sum of it in the same form, and adds to it at the
/// end of the step. `policy` adapts. Memory: that of the gradients once more.
void adapt(draft::Draft& draft, const AdaptPolicy& policy);

/// The array of sums beside an array of gradients.
std::string gathered_name(const std::string& gradients);

}  // namespace strait::strategy
