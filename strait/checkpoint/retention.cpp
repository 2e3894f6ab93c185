#include "strait/checkpoint/retention.h"

#include <filesystem>
#include <vector>

#include "strait/checkpoint/checkpoint.h"

namespace strait::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBest = "best";
// In a manifest's `extra`.
constexpr const char* kValidationLoss = "validation_loss";
constexpr const char* kOnlyBest = "saved_as_best";

/// A checkpoint that retention decides about.
struct Candidate {
  std::string path;
  Manifest manifest;
};

/// Complete ones, oldest first.
std::vector<Candidate> candidates_of(const std::string& run_dir) {
  std::vector<Candidate> found;
  for (const std::string& path : complete_checkpoints(run_dir))
    found.push_back({path, read_manifest(path)});
  return found;
}

bool only_best(const Manifest& manifest) { return manifest.extra.find(kOnlyBest) != nullptr; }

std::optional<BestCheckpoint> best_of(const std::vector<Candidate>& candidates) {
  std::optional<BestCheckpoint> best;
  for (const Candidate& candidate : candidates) {
    const std::optional<double> loss = validation_loss_of(candidate.manifest);
    if (loss && (!best || *loss < best->validation_loss)) best = {candidate.path, *loss};
  }
  return best;
}

std::string run_of(const std::string& checkpoint) {
  return fs::path(checkpoint).parent_path().parent_path().string();
}

}  // namespace

void record_validation(Manifest& manifest, double loss, bool only_best) {
  manifest.extra[kValidationLoss] = loss;
  if (only_best) manifest.extra[kOnlyBest] = true;
}

std::optional<double> validation_loss_of(const Manifest& manifest) {
  const Json* loss = manifest.extra.find(kValidationLoss);
  return loss && !loss->is_null() ? std::optional(loss->as_number()) : std::nullopt;
}

std::optional<BestCheckpoint> best_checkpoint(const std::string& run_dir, int64_t last_step) {
  std::vector<Candidate> candidates = candidates_of(run_dir);
  std::erase_if(candidates, [&](const Candidate& each) { return each.manifest.step > last_step; });
  return best_of(candidates);
}

bool names_best(const std::string& path) {
  const fs::path name(path);
  std::error_code error;
  return name.filename() == kBest && fs::is_directory(name.parent_path() / "checkpoints", error);
}

void remove_superseded(const std::string& newest, const Retention& retention) {
  if (retention.keep == 0 && !retention.keep_best) return;
  const std::vector<Candidate> all = candidates_of(run_of(newest));
  const std::optional<BestCheckpoint> best = retention.keep_best ? best_of(all) : std::nullopt;
  const int64_t newest_step = read_manifest(newest).step;
  int64_t due = 0;  // so far, newest first
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    const int64_t step = at->manifest.step;
    if (step > newest_step) continue;  // of a run that went back
    const bool was_due = !retention.keep_best || !only_best(at->manifest);
    if (was_due) ++due;
    const bool stays = was_due && (retention.keep == 0 || due <= retention.keep);
    const bool is_best = best && best->path == at->path;
    if (step < newest_step && !stays && !is_best) remove_checkpoint(at->path);
  }
}

}  // namespace strait::checkpoint
