// Cuts the wall time of a run into steps, so that their sum is what the run took.
#pragma once

#include <chrono>

#include "strait/base/clock.h"

namespace strait::train {

/// Since 1970, for TensorBoard.
inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// A step lasts from the end of the one before to its own end, less what was timed apart meanwhile
/// (evaluations, saves). Nothing else is left out: writing metrics belongs to the step after.
class StepClock {
 public:
  /// The first step begins.
  void start() { began_ = lap_began_ = now_seconds(); }

  /// The step ends: its seconds.
  double lap() {
    const double now = now_seconds(), seconds = now - lap_began_ - apart_;
    lap_began_ = now;
    apart_ = 0;
    return seconds;
  }

  /// Runs `body`, whose time is added to `sum` and belongs to no step.
  template <class Body>
  void apart(double& sum, const Body& body) {
    const double began = now_seconds();
    body();
    const double seconds = now_seconds() - began;
    sum += seconds;
    apart_ += seconds;
  }

  /// From the start of the first step to the end of the last one.
  double seconds() const { return lap_began_ - began_; }

 private:
  double began_ = 0, lap_began_ = 0, apart_ = 0;
};

}  // namespace strait::train
