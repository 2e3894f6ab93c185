// The validation loss: what the trainer and strait evaluate have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "strait/config/run.h"
#include "strait/data/loader.h"
#include "strait/runtime/state.h"
#include "strait/sequence/chunks.h"

namespace strait::train {

/// Which windows an evaluation covers, and how many ranks take at a time.
struct ValidationPlan {
  int64_t windows = 0;      // from the first window on
  int64_t micro_batch = 1;  // sequences of a rank at a time
  int64_t ranks = 1;        // that each take their own
  /// Windows of a sequence, which has so many tokens where it is a row of documents, else 0.
  int64_t row_windows = 1, row_tokens = 0;
  int64_t windows_of_rank() const { return micro_batch * row_windows; }
  int64_t stride() const { return windows_of_rank() * ranks; }
};

/// Windows that evaluation.batches asks for, a batch of which has as many as one of training has
/// sequences or, with train.global_batch_tokens, room for them.
int64_t evaluated_windows(const ValidationWindows& validation, const Run& run);
int64_t windows_of_batch(const Run& run);

/// The rank's windows from `first` on. Those beyond the plan's last one count for nothing.
void fill_windows(const ValidationWindows& validation, const ValidationPlan& plan, int64_t first,
                  BatchBuffer& buffer);

/// Of every sequence, the rows that this rank has.
void take_share(const sequence::Share& share, BatchBuffer& buffer);

/// Mean loss over the plan's windows, in nats per token: `run(first)` executes one round of all
/// ranks, whose sums then stand in `state`. NaN when a codec of activations met numbers that are
/// not finite. Nothing when a rank was asked to stop in between, or no token counts. Equal on all
/// ranks.
std::optional<double> validation_loss(const ValidationPlan& plan, runtime::State& state,
                                      const std::function<void(int64_t first)>& run);

}  // namespace strait::train
