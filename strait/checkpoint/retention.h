// Which checkpoints of a run stay on disk, and which of them is the best.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "strait/checkpoint/manifest.h"

namespace strait::checkpoint {

/// What of a run's checkpoints stays after a save.
struct Retention {
  int64_t keep = 0;        // newest ones that were due; 0 = all of them
  bool keep_best = false;  // and the one of least validation loss
};

/// Records the validation loss of the manifest's step. `only_best`: the save was not due otherwise.
void record_validation(Manifest& manifest, double loss, bool only_best);
/// The recorded loss; nothing where the step was not evaluated.
std::optional<double> validation_loss_of(const Manifest& manifest);

struct BestCheckpoint {
  std::string path;
  double validation_loss = 0;
};

/// The complete checkpoint of least recorded validation loss up to step `last_step`, of equal ones
/// the earliest. Nothing when none has one. Cost: reads every manifest of the run.
std::optional<BestCheckpoint> best_checkpoint(
    const std::string& run_dir, int64_t last_step = std::numeric_limits<int64_t>::max());

/// Whether `path` is RUN/best where RUN has a folder of checkpoints: the name of its best one.
bool names_best(const std::string& path);

/// Removes the complete checkpoints older than `newest` beside it that `retention` does not keep. A
/// crash in between leaves each of them whole or hidden. InputOutputError when the system refuses.
void remove_superseded(const std::string& newest, const Retention& retention);

}  // namespace strait::checkpoint
