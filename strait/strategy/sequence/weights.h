// Gradients of weights beside a backward that attends. Internal to the pass.
#pragma once

#include "strait/draft/draft.h"
#include "strait/draft/step_options.h"
#include "strait/shape/shape.h"

namespace strait::strategy {

/// Cuts the gradients of weights that stand behind a whole backward of a block before down, up and
/// output, and makes each part as soon as what it reads is there: inputs and output gradients of
/// three products end before the backward attends. What other passes have placed stays: parts
/// beside sums of the tensor grid, and beside moves of the residual stream.
class EarlyWeights {
 public:
  EarlyWeights(const ModelShape& shape, const draft::StepOptions& options);
  void apply(draft::Visit& visit) const;

 private:
  std::vector<program::Op> parts_of(const program::Op& weights, int64_t block) const;
  /// Behind the last op that makes something of what `part` reads, and where sums are hidden behind
  /// the transfers that follow it.
  size_t place_of(const program::Op& part, const std::vector<program::Op>& ops) const;

  ModelShape shape_;
  Dtype dtype_;
  bool hides_sums_;
  int end_;  // segments before it
};

/// Each value that the visit frees ends behind the last op that names it.
void end_behind_last_use(draft::Visit& visit);

}  // namespace strait::strategy
