#include "strait/job/resume_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "strait/base/errors.h"
#include "strait/checkpoint/files/hash.h"
#include "strait/config/keys.h"
#include "strait/config/parse.h"

namespace strait {
namespace {

constexpr int64_t kBlocks = 64, kBlockTokens = 1 << 16;

/// Keys of a model of equal parameters that steps to come can take up. A context does not change
/// the parameters of models that turn positions into angles.
bool is_open_model_key(const std::string& name, bool same_units) {
  return name == "model.preset" || name == "model.path" || name == "model.shape.dropout" ||
         (name == "model.shape.context" && same_units) || name.starts_with("model.rope.");
}

bool has_units_of(const checkpoint::CheckpointReader& resume, const ModelShape& shape) {
  try {
    checkpoint::require_same_units(resume.manifest(), checkpoint::unit_records(shape),
                                   resume.path());
    return true;
  } catch (const UserError&) {
    return false;
  }
}

/// Keys that say when replicas agree: what is under way, and what replicas have, follows from them.
bool decides_rounds(const std::string& name) {
  return name == "sync.policy" ||
         (name.starts_with("sync.rounds.") && name != "sync.rounds.mixing");
}

/// The position in the data counts batches of whole documents, and sequences without them.
bool counts_differently(const Run& run, const Run& saved) {
  return (run.train.global_batch_tokens > 0) != (saved.train.global_batch_tokens > 0);
}

/// Keys that say where and how to resume.
bool is_about_resuming(const std::string& name) {
  return name == "output.run_dir" || name == "checkpoint.resume";
}

[[noreturn]] void refuse(const Run& run, const std::string& path, const ResumeChange& change) {
  refuse_key(
      run, change.key,
      fmt::format("{} = {} cannot take effect: {} was saved with {}; the nearest valid value "
                  "is {}, or a new run",
                  change.key, change.is, path, change.was, change.was));
}

/// The run file in the checkpoint; nothing when it has none, or one of another version's keys.
std::optional<Run> saved_run(const checkpoint::CheckpointReader& resume) {
  if (!resume.has_file("run.toml")) return std::nullopt;
  try {
    return parse_run(resume.read_text("run.toml"), resume.path() + "/run.toml");
  } catch (const UserError&) {
    return std::nullopt;
  }
}

/// What data.tokenizer names without learning from the data; nothing where it would learn.
std::optional<std::string> fixed_tokenizer(const std::string& spec) {
  std::error_code none;
  const bool fixed =
      spec == "byte" || spec.starts_with("ids:") || std::filesystem::exists(spec, none);
  return fixed ? std::optional(make_tokenizer(spec, "")->serialize()) : std::nullopt;
}

/// The tokenizer of the checkpoint is used whatever data.tokenizer says, so it must say the same.
void check_tokenizer(const Run& run, const Corpus& corpus, const std::string& path,
                     const std::optional<Run>& saved) {
  if (!run.is_set("data.tokenizer")) return;
  const std::string& spec = run.data.tokenizer;
  if (const std::optional<std::string> fixed = fixed_tokenizer(spec)) {
    if (*fixed == corpus.tokenizer->serialize()) return;
  } else if (!saved || saved->data.tokenizer == spec) {
    return;
  }
  const std::string was = saved ? saved->data.tokenizer : path + "/tokenizer.json";
  refuse(run, path, {"data.tokenizer", toml_string(was), toml_string(spec)});
}

void check_precision_and_seed(const Run& run, const checkpoint::Manifest& manifest,
                              const std::string& path) {
  if (manifest.precision != run.train.precision)
    refuse(run, path,
           {"train.precision", toml_string(manifest.precision), toml_string(run.train.precision)});
  if (manifest.step > 0 && manifest.seed != static_cast<int64_t>(run.seed))
    refuse(run, path, {"seed", std::to_string(manifest.seed), std::to_string(run.seed)});
}

/// Replicas that join have no weights of their own, and those of one that leaves would be lost.
void check_replicas(const strategy::Design& design, const checkpoint::Manifest& manifest,
                    const std::string& path) {
  const Json* saved = manifest.mesh.find("replica");
  const int64_t was = saved ? saved->as_integer() : 1, is = design.mesh.axis("replica").size;
  if (was == is || manifest.step == 0) return;
  refuse_key(
      design.run, "sync.replica",
      fmt::format("{} was saved by {} replicas, and here are {}; the nearest valid choice is "
                  "{} replicas of any size, or a new run",
                  path, was, is, was));
}

void compare_keys(const strategy::Design& design, const Run& saved,
                  const checkpoint::CheckpointReader& resume, std::vector<ResumeChange>& changes) {
  const Run& run = design.run;
  const bool same_units = has_units_of(resume, design.shape);
  const std::string& path = resume.path();
  for (const Key& key : run_keys()) {
    if (same_value(key, run, saved) || is_about_resuming(key.name)) continue;
    const ResumeChange change{key.name, value_text(key, saved), value_text(key, run)};
    if (key.name.starts_with("model.") && !is_open_model_key(key.name, same_units))
      refuse(run, path, change);
    if (decides_rounds(key.name) || key.name == "optimizer.kind") refuse(run, path, change);
    if (key.name == "train.global_batch_tokens" && counts_differently(run, saved) &&
        resume.manifest().sequences_consumed > 0)
      refuse(run, path, change);
    if (key.name != "data.tokenizer") changes.push_back(change);
  }
}

}  // namespace

std::string data_hash(const Corpus& corpus) {
  const Tokens& tokens = corpus.training.tokens;
  const int64_t size = tokens.size(), all = kBlocks * kBlockTokens;
  checkpoint::Hasher128 hasher;
  hasher.update(std::to_string(size));
  std::vector<int32_t> block;
  const int64_t stride = size <= all ? kBlockTokens : (size - kBlockTokens) / (kBlocks - 1);
  for (int64_t i = 0, first = 0; i < kBlocks && first < size; ++i, first += stride) {
    block.resize(static_cast<size_t>(std::min(kBlockTokens, size - first)));
    tokens.read(first, block);
    hasher.update(std::as_bytes(std::span(block)));
  }
  return hasher.hex();
}

std::vector<ResumeChange> check_resume(const strategy::Design& design, const Corpus& corpus,
                                       const std::string& modules_hash,
                                       const checkpoint::CheckpointReader& resume) {
  const checkpoint::Manifest& manifest = resume.manifest();
  const Run& run = design.run;
  check_precision_and_seed(run, manifest, resume.path());
  const std::optional<Run> saved = saved_run(resume);
  std::vector<ResumeChange> changes;
  if (saved) compare_keys(design, *saved, resume, changes);  // which names the key, and its value
  checkpoint::require_same_units(manifest, checkpoint::unit_records(design.shape), resume.path());
  check_tokenizer(run, corpus, resume.path(), saved);
  check_replicas(design, manifest, resume.path());
  if (manifest.ranks != design.batch.ranks)
    changes.push_back(
        {"ranks", std::to_string(manifest.ranks), std::to_string(design.batch.ranks)});
  const Json* hash = manifest.extra.find("data_hash");
  if (hash && hash->as_string() != data_hash(corpus))
    changes.push_back({"data", hash->as_string(), data_hash(corpus)});
  const Json* modules = manifest.extra.find("modules_hash");
  if (modules && modules->as_string() != modules_hash)
    changes.push_back({"modules", modules->as_string(), modules_hash});
  return changes;
}

Json to_json(const std::vector<ResumeChange>& changes) {
  Json list = Json::array();
  for (const ResumeChange& change : changes)
    list.push_back(Json::object({{"key", change.key}, {"was", change.was}, {"is", change.is}}));
  return list;
}

}  // namespace strait
