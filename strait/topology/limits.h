// What the figures of a cluster may be: far beyond any machine, and yet predicted times keep their
// digits.
#pragma once

namespace strait {

/// Operations, numbers or bytes per second.
constexpr double kLeastRate = 1, kMostRate = 1e24;
constexpr double kMostLatencySeconds = 1e6;

}  // namespace strait
