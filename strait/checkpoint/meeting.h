// Where the ranks of one save meet: small notes in the save's temporary folder. Ranks need nothing
// in common but the file system, so threads, processes and several computers save in the same way.
//
// Notes of rank 2, each made whole by one rename or creation:
//   rank-00002.record.json   its file is written: rank_record_json
//   rank-00002.failed.json   it gave up, and why; rank-00002.failed-6 where the disk is too full
//                            for the reason and only the exit code is left
//   rank-00002.left          it has seen a failure and looks at the folder no more
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/errors.h"
#include "strait/checkpoint/manifest.h"

namespace strait::checkpoint {

/// A failure as values, so that every rank throws an object of its own.
struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string message;
  ErrorPlace place;

  Failure() = default;
  /// `error` as `rank` met it while it saved `step`.
  Failure(const std::exception& error, int64_t rank, int64_t step);
  /// Throws the type that belongs to the exit code.
  [[noreturn]] void raise() const;
};

/// What the notes of one rank say.
enum class Presence { kMissing, kReported, kFailed, kLeft };

/// One rank's side. The folder must exist. Not thread-safe.
class Meeting {
 public:
  Meeting(std::string folder, int64_t rank, int64_t ranks)
      : folder_(std::move(folder)), rank_(rank), ranks_(ranks) {}
  const std::string& folder() const { return folder_; }

  /// This rank's file is written. InputOutputError when the note cannot be.
  void report(const RankRecord& record);
  /// This rank gives up. Nothing happens after leave or withdraw, or where the system refuses.
  void fail(const Failure& failure) noexcept;
  /// This rank has seen a failure. Its note of the record becomes this one.
  void leave() noexcept;
  /// This rank waits for nobody, but its record counts.
  void withdraw() noexcept { left_ = true; }

  /// By rank; nothing when the folder is gone: it has its final name. One listing of the folder,
  /// which network file systems ask the server for. InputOutputError when it cannot be listed.
  std::optional<std::vector<Presence>> look() const;
  /// What a rank that is kReported wrote. InternalError when its note is none.
  RankRecord record(int64_t rank) const;
  /// Why a rank is kFailed.
  Failure failure(int64_t rank) const;
  /// Removes all notes; for the rank that publishes.
  void remove_notes() const;
  /// Removes the ranks' files, which are large, and leaves the notes.
  void remove_rank_files() const noexcept;

 private:
  std::string note(int64_t rank, const char* ending) const;

  std::string folder_;
  int64_t rank_, ranks_;
  bool left_ = false;
};

}  // namespace strait::checkpoint
