// What a training run found: the figures of INTERFACE's train report.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/job/job.h"
#include "strait/persist/layer_settings.h"
#include "strait/program/memory.h"
#include "strait/report/metrics.h"

namespace strait::train {

/// Medians over steps after training, rank 0: as the program is written, with every transfer
/// awaited at once, and with the same bytes behind the same compute that nothing waits for (the
/// floor).
struct Overlap {
  int64_t steps = 0;
  double seconds = 0, serial_seconds = 0, floor_seconds = 0;
  double communication_seconds = 0;  // of the serial step: waited for transfers
  /// (serial - as written) / (serial - floor): 1 = nothing to gain. NaN when nothing can be hidden,
  /// and when the steps as written came out faster than the floor.
  double hidden_share() const;
  /// (serial - as written) / communication: what of it is hidden, whatever moving it takes from
  /// computing.
  double hidden_share_without_floor() const;
};

struct ValidationPoint {
  int64_t step = 0;
  double loss = 0;
};

/// Seconds of rank 0 from the begin of its first step to the end of its last one, and their parts.
struct WallTime {
  double training = 0;                // the whole
  double steps = 0;                   // sum over steps
  double evaluation = 0, saving = 0;  // timed apart
};

/// Filled while the run goes on, so that a run that fails still reports what it did.
struct Outcome {
  int64_t first_step = 0;        // steps done before this process
  int64_t steps = 0;             // steps done in all
  int64_t first_tokens = 0;      // trained on before this process
  int64_t tokens = 0;            // in all
  int64_t timed_tokens = 0;      // of the steps of step_seconds
  double timed_model_flops = 0;  // of the same
  std::string stopped_by;        // "steps", "signal SIGTERM", "error"
  std::vector<double> losses;    // each step since the run began, global mean
  int64_t steps_skipped = 0;     // of this process: without an update, as something is not finite
  int64_t steps_taken_back = 0;  // of this process: updates that post-validation found wrong
  std::vector<ValidationPoint> validation;
  std::vector<double> step_seconds;  // of this process: without the first 5, evaluation, saving
  WallTime wall;
  std::vector<double> save_stall_seconds;  // by save of this process: training stood still, rank 0
  std::vector<double> exposed_shares;      // by rank: waited / step time, steps of this process
  Ledger traffic;                          // training steps of this process, all ranks
  Ledger between_steps;  // programs that are no steps: start, end, evaluations; all ranks
  Ledger bookkeeping;    // beside programs (bookkeeping.h), all ranks
  std::vector<program::MemoryUse> state_bytes;  // by rank: resident
  std::vector<int64_t> predicted_peak_bytes;    // by rank: peak_memory of the step program
  std::vector<int64_t> pool_peak_bytes;         // by rank: what the allocator saw
  int64_t peak_resident_bytes = 0;              // of the process, or of all
  std::string backend = "threads";
  std::string parameter_hash;
  std::string checkpoint;       // last one of this run folder, or ""
  std::string best_checkpoint;  // of the run folder, by validation loss, or ""
  std::optional<Overlap> overlap;
  std::vector<persist::ChosenSettings>
      settings;  // of layers: that the run came with, and chosen since
};

/// What rank `rank` alone knows, where ranks are processes: shares, memory, traffic. And adds it on
/// rank 0.
Json rank_part(const Outcome& outcome, int64_t rank);
void add_rank_part(Outcome& outcome, int64_t rank, const Json& part);

/// Of the steps that seconds_per_step counts: tokens over time, all ranks; and the share of the
/// peak. NaN without steps.
double tokens_per_second(const Outcome& outcome);
double model_flops_utilization(const Job& job, const Outcome& outcome);
/// Of the windows that the run evaluates, at this mean loss; NaN where no bytes are known.
double bits_per_byte(const Job& job, double validation_loss);

/// The members of the train report that follow from a job and its outcome.
Json outcome_json(const Job& job, const Outcome& outcome);

/// Writes summary.json into the run folder, for `strait report`: {plan: what was computed before
/// the first step: total_steps, seconds_per_step, compute_seconds, exposed_communication_seconds,
/// bytes_per_step: LEVELS, memory: MEM at its peak of the rank that needs most}, and, with an
/// outcome, {train: outcome_json}.
void write_summary(const Job& job, const Outcome* outcome);
/// Whether the run folder's summary.json holds an outcome.
bool summary_is_whole(const Job& job);

}  // namespace strait::train
