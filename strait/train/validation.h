// The validation loss: what the trainer and strait evaluate have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "strait/config/options.h"
#include "strait/data/loader.h"
#include "strait/runtime/state.h"
#include "strait/sequence/chunks.h"

namespace strait::train {

/// Which windows an evaluation covers, and how many ranks take at a time.
struct ValidationPlan {
  int64_t windows = 0;      // from the first window on
  int64_t micro_batch = 1;  // windows of a rank at a time
  int64_t ranks = 1;        // that each take their own
  int64_t stride() const { return micro_batch * ranks; }
};

/// Windows that `options` asks for; batches count sequences of the global batch.
int64_t evaluated_windows(const ValidationWindows& validation, const EvaluationOptions& options,
                          int64_t global_batch_size);

/// The rank's windows from `first` on. Those beyond the plan's last one count for nothing.
void fill_windows(const ValidationWindows& validation, const ValidationPlan& plan, int64_t first,
                  BatchBuffer& buffer);

/// Of every sequence, the rows that this rank has.
void take_share(const sequence::Share& share, BatchBuffer& buffer);

/// Mean loss over the plan's windows, in nats per token: `run(first)` executes one round of all
/// ranks, whose sums then stand in `state`. Nothing when a rank was asked to stop in between, or no
/// token counts. Equal on all ranks.
std::optional<double> validation_loss(const ValidationPlan& plan, runtime::State& state,
                                      const std::function<void(int64_t first)>& run);

}  // namespace strait::train
