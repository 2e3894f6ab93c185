// One run's saves when its ranks are threads: collects the ranks' records, and the last rank
// publishes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/clock.h"
#include "strait/checkpoint/checkpoint.h"

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

/// Shared by all ranks of a run; thread-safe. For each save every rank calls open, then add or
/// fail, then wait, each once. Waits sleep on a condition variable and end with Timeout, naming a
/// rank that is missing, `deadline_seconds` after they began.
class SaveSession {
 public:
  SaveSession(std::string run_dir, int64_t ranks, double deadline_seconds);
  ~SaveSession();
  double deadline_seconds() const { return deadline_seconds_; }

  /// Temporary folder of the save of `step`; the first rank to arrive makes it.
  std::string open(int64_t step, int64_t rank);
  /// The rank's file is written. Rank 0 gives the description. The call that completes the save
  /// publishes it, on its own thread; its failures go to wait, not to the caller.
  void add(int64_t step, int64_t rank, RankRecord record,
           std::optional<SaveDescription> description = std::nullopt);
  /// The rank could not write its file.
  void fail(int64_t step, int64_t rank, const std::exception& error);
  /// Blocks until the save is published and returns its path. Throws, on every rank alike, what
  /// made the save fail; the temporary folder is removed then.
  std::string wait(int64_t step, int64_t rank);

  /// open, write_rank_file, add, wait.
  std::string save(int64_t step, int64_t rank, const std::vector<ShardView>& shards,
                   std::optional<SaveDescription> description = std::nullopt);

 private:
  struct Save;
  std::shared_ptr<Save> find(int64_t step);
  /// Called with the lock held after a rank reported; finishes the save when it was the last.
  void report(std::unique_lock<std::mutex>& lock, Save& save, int64_t rank);

  const std::string run_dir_;
  const int64_t ranks_;
  const double deadline_seconds_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, std::shared_ptr<Save>> saves_;  // by step, until every rank has waited
};

}  // namespace strait::checkpoint
