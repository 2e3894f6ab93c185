// One rank's side of a run's saves. The ranks meet in the folder of the save and nowhere else, so
// it is the same for threads, for processes and for several computers that share a file system.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strait/checkpoint/checkpoint.h"
#include "strait/checkpoint/retention.h"

namespace strait::checkpoint {

struct TextFile {
  std::string name;
  std::string contents;
};

/// What rank 0 adds: the manifest without shards and files, and the further files.
struct SaveDescription {
  Manifest manifest;
  std::vector<TextFile> texts;
};

struct SessionOptions {
  std::string run_dir;  // the same folder on every rank
  std::string
      token;  // 1 to 64 letters, digits, '-', '_': the same on all ranks of this run, and on
              // no other run, so that what a crash left is never taken for part of a save
  int64_t rank = 0, ranks = 1;
  double deadline_seconds = 120;  // how long a rank that is ready waits for the others
  Retention retention = {};
};

/// A token that no other call gives, on any computer. One rank makes it, and tells the others.
std::string make_session_token();

class Meeting;

/// Every rank makes the same saves in the same order. One thread at a time; cancel from any.
class SaveSession {
 public:
  /// InternalError when an option is out of range.
  explicit SaveSession(SessionOptions options);
  double deadline_seconds() const { return options_.deadline_seconds; }

  /// Writes this rank's part; rank 0, which gives the description, then waits for the others,
  /// publishes and removes what retention does not keep; the others wait for that. Returns the path
  /// of the checkpoint. Throws on every rank what any rank failed with, and Timeout, naming the
  /// ranks that are missing, a deadline after this rank wrote its part. What failed leaves no
  /// checkpoint and no large file. Waits look at the folder, every 0.2 ms at first, every 100 ms
  /// later on.
  std::string save(int64_t step, const std::vector<ShardView>& shards,
                   std::optional<SaveDescription> description = std::nullopt);

  /// Ends the waiting of a save in flight, and of later ones: ranks leave once they have written,
  /// rank 0 gives the others 2 seconds to do so.
  void cancel() { cancelled_ = true; }

 private:
  std::string lead(Meeting& meeting, int64_t step, std::optional<SaveDescription> description);
  std::string follow(Meeting& meeting, int64_t step);
  void disband(const Meeting& meeting) const;

  const SessionOptions options_;
  int64_t saves_ = 0;  // begun; equal on all ranks
  std::atomic<bool> cancelled_ = false;
};

}  // namespace strait::checkpoint
