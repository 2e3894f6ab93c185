// Checkpoint folders: RUN/checkpoints/step-00000100 holds rank-00000.safetensors ...,
// tokenizer.json, run.toml and manifest.json. A folder of that name is always whole: it is filled
// under a hidden name and renamed. A crash at any moment leaves the old set of checkpoints or the
// new one.
//
// Saving takes three calls: begin (or join, where several ranks save), write the ranks' files,
// publish. session.h makes them for the ranks of a run and sees to their order.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "strait/checkpoint/manifest.h"

namespace strait::checkpoint {

/// A range and where its elements lie in memory now, packed where it is not one range.
struct ShardView {
  StateRange range;
  const void* data = nullptr;
};

/// "step-00000100".
std::string checkpoint_name(int64_t step);

/// Makes RUN/checkpoints and in it the temporary folder of `step`, removing one left by a crash.
/// Returns its path. For a save by one caller. InputOutputError when the system refuses.
std::string begin_save(const std::string& run_dir, int64_t step);

/// The same for a save by several ranks: the first to come makes the folder. `tag`, without dots,
/// must name this save and no other one, of this run or an earlier one.
std::string join_save(const std::string& run_dir, int64_t step, const std::string& tag);

/// Writes the file of `rank` into the temporary folder and to disk (fsync). Empty ranges are left
/// out. A range that several ranks hold is to be written by one of them. Ranks may call in
/// parallel. InputOutputError, with nothing left of the file, when the system fails.
RankRecord write_rank_file(const std::string& temporary_folder, int64_t rank,
                           const std::vector<ShardView>& shards);

/// Writes a further file (tokenizer.json, run.toml) into the temporary folder and to disk.
FileRecord write_text(const std::string& temporary_folder, const std::string& name,
                      std::string_view contents);

/// Checks that every listed file is there and every saved state covered (InternalError otherwise),
/// writes the manifest last, and renames the folder to its final name; each is on disk before the
/// next. An older checkpoint of the same step is replaced. Returns the final path. InputOutputError
/// when the system fails; the old set is intact then.
std::string publish(const std::string& temporary_folder, const Manifest& manifest);

/// Final path of a temporary folder that is gone because it was published. InputOutputError when it
/// was not.
std::string published_path(const std::string& temporary_folder);

/// Removes a checkpoint. A crash in between leaves it whole or hidden. InputOutputError when the
/// system refuses.
void remove_checkpoint(const std::string& path);

/// Drops a save that failed.
void abandon(const std::string& temporary_folder);

/// What keeps `folder` from being complete, naming the file: no valid manifest, or a listed file
/// that is missing or has another size. "" when complete. Hashes are not checked.
std::string damage_of(const std::string& folder);
bool is_complete(const std::string& folder);

/// Paths of the complete checkpoints of a run, oldest first. Empty when the run has none.
std::vector<std::string> complete_checkpoints(const std::string& run_dir);

/// The newest of them.
std::optional<std::string> latest_complete(const std::string& run_dir);

/// The checkpoint to go on from: that of the highest step; nothing when the run has none. A crash
/// leaves no other than complete ones, so one that is not was damaged: UserError naming the file,
/// and the newest complete one instead.
std::optional<std::string> newest_checkpoint(const std::string& run_dir);

/// Gives the checkpoints of steps behind `step`, damaged ones too, names by which no reader finds
/// them: abandoned-step-00000100, with .2 and so on behind it where that is taken. Newest first, so
/// that a crash in between leaves a run that goes on from one of them. Returns the old paths and
/// the new ones. InputOutputError when the system refuses.
std::vector<std::pair<std::string, std::string>> set_aside_behind(const std::string& run_dir,
                                                                  int64_t step);

/// Removes what interrupted saves left. Only when no save is in progress in `run_dir`.
void clean_partial(const std::string& run_dir);

/// The checkpoint folder that a user's path means: itself, the newest_checkpoint of a run folder,
/// or the best_checkpoint of RUN where the path is RUN/best. UserError naming the nearest choice
/// otherwise.
std::string resolve_checkpoint(const std::string& path);

}  // namespace strait::checkpoint
