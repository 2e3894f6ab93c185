// The order in which every rank takes part in the rounds of its rings, and a proof that they do not
// wait for each other in a circle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/sequence/plan.h"

namespace strait::sequence {

/// Round `round` of ring (group) `ring`, in which every member sends and receives.
struct Meeting {
  int32_t ring = 0, round = 0;
  bool operator==(const Meeting&) const = default;
};

/// What each rank takes part in, in this order: by (ring id, round). Rounds that move keys are
/// 1 .. g - 1; engines other than rings meet once.
std::vector<std::vector<Meeting>> meetings(const Plan& plan);

/// "" when every meeting takes place, if a rank enters its next one only after the last; else what
/// the first ranks wait for. Cost: O(sum of meetings x members).
std::string find_circle(const Plan& plan, const std::vector<std::vector<Meeting>>& queues);

}  // namespace strait::sequence
