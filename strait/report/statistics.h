// The six figures by which the program describes a sample of measurements, the one of a run's
// losses, and amounts per second.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/base/json.h"

namespace strait::report {

/// Order statistics. With count 0 all others are NaN (null in JSON).
struct Statistics {
  double median, min, max, p10, p90;
  int64_t count = 0;
};

/// Statistics of the finite values; quantiles interpolate linearly between neighbours.
/// Cost: O(n log n).
Statistics statistics_of(std::vector<double> values);

/// {median, min, max, p10, p90, count}, the STAT of every report.
Json to_json(const Statistics& statistics);

/// The last steps over which the loss of a run is a mean.
inline constexpr int64_t kLossSteps = 100;

/// Mean over those of the last kLossSteps steps that have a loss (not NaN); NaN without any.
double final_loss(const std::vector<double>& losses);

/// An amount per second, over the steps that tell both.
class Rate {
 public:
  /// One step; left out where either is NaN.
  void add(double amount, double seconds);
  /// NaN without any seconds.
  double value() const;

 private:
  double amount_ = 0, seconds_ = 0;
};

}  // namespace strait::report
