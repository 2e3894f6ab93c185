// The folder of a run: a new one, a given one, or the one that is resumed.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "strait/base/lock_file.h"
#include "strait/config/run.h"

namespace strait {

/// Where a run lives and what it resumes from.
struct RunFolder {
  std::string path;                            // exists when prepare_run_folder returns
  std::optional<std::string> checkpoint;       // folder of the checkpoint to go on from
  std::optional<double> best_validation_loss;  // in it, up to the step to go on from
  std::unique_ptr<LockFile> lock;              // nobody else trains in the folder while this lives
};

/// Resolves output.run_dir and checkpoint.resume. "" makes runs/<name>-NNN with the first free
/// number. A folder that holds a run is a UserError unless resuming; "auto" resumes its newest
/// checkpoint if there is one, a UserError when that is damaged; a path resumes from there, into
/// run_dir (or its own run folder when run_dir is ""); a run_dir that holds another run is a
/// UserError. What interrupted writes left is removed. A
/// folder in which a run goes on is a UserError naming the process, and nothing in it is touched.
/// InputOutputError when the folder cannot be made.
RunFolder prepare_run_folder(const Run& run);

}  // namespace strait
