#include "strait/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>

#include "strait/base/errors.h"
#include "strait/base/file.h"
#include "strait/checkpoint/files/hash.h"
#include "strait/checkpoint/files/safetensors.h"
#include "strait/checkpoint/reader.h"
#include "strait/checkpoint/retention.h"

namespace strait::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kHiddenPrefix = ".step-";
constexpr std::string_view kPartial = ".partial";    // being filled, or old and being removed
constexpr std::string_view kReplaced = ".replaced";  // old, until the new one has its name

[[noreturn]] void fail(const char* doing, const fs::path& path, const std::string& reason) {
  ErrorPlace place;
  place.file = path.string();
  throw InputOutputError(fmt::format("cannot {} {}: {}", doing, path.string(), reason), place);
}

bool is_there(const fs::path& path) { return path_exists(path.string()); }

fs::path checkpoints_of(const std::string& run_dir) { return fs::path(run_dir) / "checkpoints"; }

fs::path hidden(const fs::path& final_path, std::string_view ending) {
  return final_path.parent_path() / fmt::format(".{}{}", final_path.filename().string(), ending);
}

/// step-00000100 of .step-00000100.partial or .step-00000100.TAG.partial, beside it; an empty path
/// when the name has another form.
fs::path final_of(const fs::path& hidden_path, std::string_view ending) {
  const std::string name = hidden_path.filename().string();
  if (!name.starts_with(kHiddenPrefix) || !name.ends_with(ending)) return {};
  return hidden_path.parent_path() / name.substr(1, name.find('.', 1) - 1);
}

/// Step of a folder's name, -1 when it has another form.
int64_t step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return -1;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + kPrefix.size(), end, step);
  return result.ec == std::errc() && result.ptr == end && checkpoint_name(step) == name ? step : -1;
}

void remove_folder(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail("remove", path, error.message());
}

void rename_folder(const fs::path& from, const fs::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) fail("rename to", to, errno_text(errno));
}

/// Exchanges two names in one step; false where the file system cannot.
bool exchange(const fs::path& a, const fs::path& b) {
#ifdef SYS_renameat2
  constexpr unsigned kExchange = 2;  // RENAME_EXCHANGE
  return ::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), kExchange) == 0;
#else
  return false;
#endif
}

/// Gives the filled folder its final name. Where a checkpoint of that name exists and names cannot
/// be exchanged, it waits under a hidden name, from which clean_partial and the next save restore
/// it.
void rename_into_place(const fs::path& temporary, const fs::path& final_path) {
  const fs::path parent = final_path.parent_path();
  if (!is_there(final_path)) {
    rename_folder(temporary, final_path);
    sync_path(parent.string());
    return;
  }
  if (exchange(temporary, final_path)) {
    sync_path(parent.string());
    remove_folder(temporary);
    return;
  }
  const fs::path old = hidden(final_path, kReplaced);
  rename_folder(final_path, old);
  rename_folder(temporary, final_path);
  sync_path(parent.string());
  remove_folder(old);
}

/// Undoes or finishes a replacement that a crash cut in two, if there is one.
void settle_replaced(const fs::path& old) {
  if (!is_there(old)) return;
  const fs::path final_path = final_of(old, kReplaced);
  if (is_there(final_path)) {
    remove_folder(old);
  } else {
    rename_folder(old, final_path);
  }
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directory(path, error);  // no error when it is there
  if (error) fail("create the folder", path, error.message());
}

/// Path of a temporary folder, in RUN/checkpoints, which exists afterwards.
fs::path temporary_of(const std::string& run_dir, int64_t step, const std::string& tag) {
  ensure(step >= 0, "a save of a negative step");
  const fs::path parent = checkpoints_of(run_dir);
  std::error_code error;
  if (fs::create_directories(parent, error)) sync_path(run_dir);
  if (error) fail("create the folder", parent, error.message());
  return hidden(parent / checkpoint_name(step), tag + std::string(kPartial));
}

/// None where nothing is there. A folder that cannot be listed is no empty one: InputOutputError.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_symlink(folder, error) && !is_there(folder)) return {};
  std::vector<fs::path> entries;
  fs::directory_iterator it(folder, error);
  for (const fs::directory_iterator end; !error && it != end; it.increment(error))
    entries.push_back(it->path());
  if (error) fail("list", folder, error.message());
  return entries;
}

/// Name of the checkpoint beside `wanted` whose step (else whose name) is nearest, "" without one.
std::string nearest_checkpoint(const fs::path& wanted) {
  std::vector<std::string> names;
  std::error_code none;  // this only helps a message
  for (fs::directory_iterator it(wanted.parent_path(), none), end; !none && it != end;
       it.increment(none))
    if (step_of(it->path()) >= 0) names.push_back(it->path().filename().string());
  const int64_t step = step_of(wanted);
  if (step < 0 || names.empty()) return nearest_choice(wanted.filename().string(), names);
  return *std::min_element(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return std::abs(step_of(a) - step) < std::abs(step_of(b) - step);
  });
}

void check_sizes(const fs::path& folder, const Manifest& manifest) {
  for (const FileRecord& file : manifest.files) {
    std::error_code error;
    const auto bytes = fs::file_size(folder / file.name, error);
    if (error || static_cast<int64_t>(bytes) != file.bytes)
      throw InternalError(fmt::format("publish: {} does not have the {} bytes of its record",
                                      (folder / file.name).string(), file.bytes));
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08d}", kPrefix, step); }

std::string begin_save(const std::string& run_dir, int64_t step) {
  const fs::path temporary = temporary_of(run_dir, step, "");
  settle_replaced(hidden(final_of(temporary, kPartial), kReplaced));
  remove_folder(temporary);
  make_folder(temporary);
  return temporary.string();
}

std::string join_save(const std::string& run_dir, int64_t step, const std::string& tag) {
  ensure(tag.find('.') == std::string::npos, "join_save: a dot in the tag");
  const fs::path temporary = temporary_of(run_dir, step, "." + tag);
  make_folder(temporary);
  return temporary.string();
}

RankRecord write_rank_file(const std::string& temporary_folder, int64_t rank,
                           const std::vector<ShardView>& shards) {
  RankRecord record;
  record.file.name = fmt::format("rank-{:05d}.safetensors", rank);
  std::vector<TensorView> tensors;
  for (const auto& [range, data] : shards) {
    ensure(0 <= range.begin && range.begin <= range.end, "write_rank_file: a shard is no range");
    const int64_t elements = range.elements();
    if (elements == 0) continue;
    const std::span bytes(static_cast<const std::byte*>(data),
                          static_cast<size_t>(elements * dtype_bytes(range.dtype)));
    tensors.push_back({shard_tensor_name(range), range.dtype, {elements}, bytes});
    record.shards.push_back({range, record.file.name});
  }
  const Metadata metadata = {{"format", kManifestFormat}, {"rank", std::to_string(rank)}};
  const std::string path = (fs::path(temporary_folder) / record.file.name).string();
  const WrittenFile written = write_safetensors(path, std::move(tensors), metadata);
  record.file.bytes = written.bytes;
  record.file.hash = written.hash;
  return record;
}

FileRecord write_text(const std::string& temporary_folder, const std::string& name,
                      std::string_view contents) {
  write_file_atomically((fs::path(temporary_folder) / name).string(), contents);
  return {name, static_cast<int64_t>(contents.size()), hash_hex(contents)};
}

std::string publish(const std::string& temporary_folder, const Manifest& manifest) {
  const fs::path temporary = temporary_folder;
  const fs::path final_path = final_of(temporary, kPartial);
  if (step_of(final_path) != manifest.step)
    throw InternalError(fmt::format("publish: {} is not the temporary folder of step {}",
                                    temporary_folder, manifest.step));
  try {
    check_shards(manifest);
    require_full_coverage(manifest, final_path.string());
  } catch (const UserError& error) {  // here the manifest is ours, not a user's
    throw InternalError(fmt::format("publish: {}", error.what()), error.place());
  }
  check_sizes(temporary, manifest);
  settle_replaced(hidden(final_path, kReplaced));
  write_file_atomically((temporary / kManifestFile).string(), manifest_text(manifest));
  rename_into_place(temporary, final_path);
  return final_path.string();
}

std::string published_path(const std::string& temporary_folder) {
  const fs::path final_path = final_of(temporary_folder, kPartial);
  if (!is_there(final_path / kManifestFile))
    fail("publish", final_path, temporary_folder + " was removed");
  return final_path.string();
}

void remove_checkpoint(const std::string& path) {
  const fs::path going = hidden(path, ".old" + std::string(kPartial));
  rename_folder(path, going);
  sync_path(going.parent_path().string());
  remove_folder(going);
}

void abandon(const std::string& temporary_folder) { remove_folder(temporary_folder); }

std::string damage_of(const std::string& folder) {
  try {
    verify_files(read_manifest(folder), folder, false);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

bool is_complete(const std::string& folder) { return damage_of(folder).empty(); }

std::vector<std::string> complete_checkpoints(const std::string& run_dir) {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const fs::path& entry : entries_of(checkpoints_of(run_dir)))
    if (const int64_t step = step_of(entry); step >= 0 && is_complete(entry.string()))
      found.emplace_back(step, entry.string());
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

std::optional<std::string> latest_complete(const std::string& run_dir) {
  // Newest first, so that only one manifest is read in the usual case.
  std::vector<fs::path> entries = entries_of(checkpoints_of(run_dir));
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return step_of(a) > step_of(b); });
  for (const fs::path& entry : entries)
    if (step_of(entry) >= 0 && is_complete(entry.string())) return entry.string();
  return std::nullopt;
}

std::optional<std::string> newest_checkpoint(const std::string& run_dir) {
  fs::path newest;
  for (const fs::path& entry : entries_of(checkpoints_of(run_dir)))
    if (step_of(entry) >= 0 && (newest.empty() || step_of(entry) > step_of(newest))) newest = entry;
  if (newest.empty()) return std::nullopt;
  const std::string damage = damage_of(newest.string());
  if (damage.empty()) return newest.string();
  const auto whole = latest_complete(run_dir);
  ErrorPlace place;
  place.file = newest.string();
  throw UserError(
      fmt::format(
          "the newest checkpoint {} is damaged: {}; {}", newest.string(), damage,
          whole ? "the newest whole one is " + *whole + ": name it, or remove the damaged folder"
                : "the run has no whole one: remove the folder to begin again"),
      place);
}

namespace {

fs::path abandoned_name(const fs::path& checkpoint) {
  const std::string name = fmt::format("abandoned-{}", checkpoint.filename().string());
  fs::path path = checkpoint.parent_path() / name;
  for (int number = 2; is_there(path); ++number)
    path = checkpoint.parent_path() / fmt::format("{}.{}", name, number);
  return path;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> set_aside_behind(const std::string& run_dir,
                                                                  int64_t step) {
  std::vector<fs::path> later;
  for (const fs::path& entry : entries_of(checkpoints_of(run_dir)))
    if (step_of(entry) > step) later.push_back(entry);
  std::ranges::sort(later, std::greater<>(), step_of);
  std::vector<std::pair<std::string, std::string>> renamed;
  for (const fs::path& checkpoint : later) {
    const fs::path to = abandoned_name(checkpoint);
    rename_folder(checkpoint, to);
    sync_path(to.parent_path().string());
    renamed.emplace_back(checkpoint.string(), to.string());
  }
  return renamed;
}

void clean_partial(const std::string& run_dir) {
  for (const fs::path& entry : entries_of(checkpoints_of(run_dir))) {
    if (!final_of(entry, kReplaced).empty()) settle_replaced(entry);
    if (!final_of(entry, kPartial).empty()) remove_folder(entry);
  }
}

namespace {

std::string best_or_throw(const std::string& run_dir) {
  if (const auto best = best_checkpoint(run_dir)) return best->path;
  ErrorPlace place;
  place.file = run_dir;
  throw UserError(
      fmt::format("no checkpoint of {} was evaluated, so none is the best; the nearest is {}, its "
                  "newest one",
                  run_dir, run_dir),
      place);
}

}  // namespace

std::string resolve_checkpoint(const std::string& path) {
  fs::path folder = fs::path(path).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // a trailing slash
  if (is_there(folder / kManifestFile)) return folder.string();
  if (names_best(folder.string())) return best_or_throw(folder.parent_path().string());
  if (const auto newest = newest_checkpoint(folder.string())) return *newest;
  ErrorPlace place;
  place.file = path;
  if (is_folder((folder / "checkpoints").string()) || is_there(folder / "run.toml"))
    throw UserError(fmt::format("the run folder {} holds no complete checkpoint", path), place);
  const std::string nearest = nearest_checkpoint(folder);
  const std::string hint = nearest.empty() ? ""
                                           : fmt::format("; the nearest is {}",
                                                         (folder.parent_path() / nearest).string());
  throw UserError(
      fmt::format("{} {}{}", path,
                  is_folder(folder.string()) ? "is neither a checkpoint nor a run folder"
                                             : "is not a folder",
                  hint),
      place);
}

}  // namespace strait::checkpoint
