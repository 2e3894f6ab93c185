#include "strait/job/run_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/base/process_identity.h"
#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/retention.h"

namespace strait {
namespace {

namespace fs = std::filesystem;

constexpr int kMostRuns = 100000;

ErrorPlace place(const std::string& key, const std::string& file) {
  ErrorPlace result;
  result.key = key;
  result.file = file;
  return result;
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error)
    throw InputOutputError(fmt::format("cannot make the run folder {}: {}", path, error.message()),
                           place("output.run_dir", path));
}

std::string new_folder(const std::string& name) {
  for (int number = 1; number < kMostRuns; ++number) {
    const std::string path = fmt::format("runs/{}-{:03}", name, number);
    make_folder("runs");
    std::error_code error;
    if (fs::create_directory(path, error)) return path;
    if (error)
      throw InputOutputError(
          fmt::format("cannot make the run folder {}: {}", path, error.message()),
          place("output.run_dir", path));
  }
  throw UserError(
      fmt::format("runs/{}-001 and all {} behind it exist; set output.run_dir", name, kMostRuns),
      place("output.run_dir", "runs"));
}

std::unique_ptr<LockFile> lock_folder(const std::string& path) {
  try {
    return std::make_unique<LockFile>(path + "/lock", "the run folder " + path);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}; wait for the end of that run, or set another output.run_dir",
                                error.what()),
                    place("output.run_dir", path));
  }
}

bool holds_run(const std::string& path) {
  return path_exists(path + "/metrics.jsonl") || path_exists(path + "/run.toml") ||
         path_exists(path + "/checkpoints");
}

/// RUN of RUN/checkpoints/step-N.
std::string run_of(const std::string& checkpoint) {
  return fs::path(checkpoint).lexically_normal().parent_path().parent_path().string();
}

/// Whether the checkpoint is one of the run in the folder.
bool is_of(const std::string& checkpoint, const std::string& path) {
  const fs::path parent = fs::path(checkpoint).lexically_normal().parent_path();
  std::error_code none;
  return parent.filename() == "checkpoints" && fs::equivalent(run_of(checkpoint), path, none);
}

void refuse_other_run(const RunFolder& folder) {
  if (!holds_run(folder.path)) return;
  if (!folder.checkpoint)
    throw UserError(
        fmt::format("{} already holds a run; set checkpoint.resume = \"auto\" to go on with it, or "
                    "another output.run_dir",
                    folder.path),
        place("output.run_dir", folder.path));
  if (!is_of(*folder.checkpoint, folder.path))
    throw UserError(fmt::format("{} already holds another run than that of {}; the nearest valid "
                                "choice is another output.run_dir",
                                folder.path, *folder.checkpoint),
                    place("output.run_dir", folder.path));
}

std::string resume_from(const std::string& resume) {
  try {
    return checkpoint::resolve_checkpoint(resume);
  } catch (InputOutputError& error) {
    error.place().key = "checkpoint.resume";
    throw;
  }
}

/// What a run that goes on from `checkpoint` has to undercut.
std::optional<double> best_loss(const std::string& path,
                                const std::optional<std::string>& checkpoint) {
  if (!checkpoint) return std::nullopt;
  const auto best = checkpoint::best_checkpoint(path, checkpoint::read_manifest(*checkpoint).step);
  return best ? std::optional(best->validation_loss) : std::nullopt;
}

}  // namespace

RunFolder prepare_run_folder(const Run& run) {
  const std::string& resume = run.checkpoint.resume;
  RunFolder folder;
  folder.path = run.output.run_dir;
  if (resume != "never" && resume != "auto") {
    folder.checkpoint = resume_from(resume);
    if (folder.path.empty()) folder.path = run_of(*folder.checkpoint);
  }
  if (folder.path.empty()) {
    if (resume == "auto")
      throw UserError(
          "checkpoint.resume = \"auto\" needs output.run_dir: the folder to look for a checkpoint "
          "in",
          place("checkpoint.resume", "run.toml"));
    folder.path = new_folder(run.name);
    folder.lock = lock_folder(folder.path);
    return folder;
  }
  make_folder(folder.path);
  folder.lock = lock_folder(folder.path);
  if (resume != "auto") refuse_other_run(folder);
  checkpoint::clean_partial(folder.path);
  remove_interrupted_writes(folder.path);
  if (resume == "auto") folder.checkpoint = checkpoint::newest_checkpoint(folder.path);
  folder.best_validation_loss = best_loss(folder.path, folder.checkpoint);
  return folder;
}

}  // namespace strait
