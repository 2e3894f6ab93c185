// Runs a job on thread ranks.
#pragma once

#include <atomic>

#include "strait/train/job.h"
#include "strait/train/outcome.h"
#include "strait/train/trainer.h"

namespace strait::train {

/// Trains to the end or until `signal` is not 0. `outcome` holds what is known also when this
/// throws: what a rank failed with. Writes metrics.jsonl, checkpoints and, when asked,
/// timeline.json into the run folder. Every failure leaves the flight records of the ranks in the
/// run folder; `strait report` reads them.
void train(const Job& job, const Observer& observer, const std::atomic<int>& signal,
           Outcome& outcome, const Hooks& hooks = {});

}  // namespace strait::train
