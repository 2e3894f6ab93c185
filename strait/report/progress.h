// What a person sees while a run goes on: one line per interval and, on a terminal, a bar below it.
#pragma once

#include <cstdint>
#include <string>

#include "strait/report/metrics.h"

namespace strait::report {

struct ProgressOptions {
  int64_t total_steps = 1;
  int64_t first_step = 0;  // steps done before this process: resumed_from_step
  int64_t log_every_steps = 10;
  std::string prediction_note = {};  // behind what was predicted: " by preset localhost"
};

/// Turns the metrics of each step into text to print. It prints nothing itself and knows no clock:
/// the remaining time follows from the seconds of the steps. Not thread-safe. Cost: O(levels) per
/// step.
class Progress {
 public:
  explicit Progress(ProgressOptions options) : options_(options) {}

  /// Text to print after a step: the line of the interval when one ends (also after the first and
  /// the last step), how many of its steps were left out, the line of an evaluation, or "".
  std::string advance(const StepMetrics& metrics);

  /// One step, or the means over an interval that ends with it, as one line without line break.
  std::string line(const StepMetrics& metrics) const;

  /// The bar as it stands, narrower than `columns`, without carriage return.
  std::string bar(const StepMetrics& metrics, int64_t columns) const;

 private:
  StepMetrics interval_mean(const StepMetrics& last) const;

  ProgressOptions options_;
  // Sums since the last line; `timed_steps_` counts the steps in them.
  double seconds_ = 0, exposed_seconds_ = 0, tokens_ = 0, utilization_seconds_ = 0;
  int64_t timed_steps_ = 0;
  int64_t skipped_steps_ = 0;  // since the last line
  // Since the start, for the remaining time.
  double elapsed_seconds_ = 0;
  int64_t elapsed_steps_ = 0;
};

}  // namespace strait::report
