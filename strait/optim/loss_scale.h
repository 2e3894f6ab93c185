// The factor that keeps fp16 gradients inside their range. Source: Micikevicius et al., Mixed
// Precision Training (2018), section 3.2; the figures are those of PyTorch's GradScaler.
#pragma once

#include <cstdint>

namespace strait::optim {

struct LossScaleOptions {
  double initial = 65536;
  double growth = 2, backoff = 0.5;
  int64_t growth_every = 2000;  // good steps in a row
  double smallest = 1;
};

/// What the gradients of a step are multiplied by; powers of two, so that taking it out again is
/// exact. Every rank keeps its own and takes the same steps.
class LossScale {
 public:
  explicit LossScale(const LossScaleOptions& options = {})
      : options_(options), value_(options.initial) {}
  /// As a checkpoint holds it.
  LossScale(const LossScaleOptions& options, double value, int64_t good_steps)
      : options_(options), value_(value), good_steps_(good_steps) {}

  double value() const { return value_; }
  /// Updates since the scale last changed or a step was skipped.
  int64_t good_steps() const { return good_steps_; }
  /// After a step; `finite`: its gradients were, on all ranks. False when they were not and the
  /// scale could not get smaller: it was not the scale's fault.
  bool advance(bool finite);

 private:
  LossScaleOptions options_;
  double value_;
  int64_t good_steps_ = 0;
};

}  // namespace strait::optim
