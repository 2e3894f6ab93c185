// Saving behind the training: shards are copied, then written while the caller goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "strait/checkpoint/session.h"

namespace strait::checkpoint {

/// One rank's asynchronous saves; at most one is in flight. Not thread-safe: one writer per rank.
class SnapshotWriter {
 public:
  /// `session`, the rank's own, outlives the writer.
  explicit SnapshotWriter(SaveSession& session) : session_(&session) {}
  /// Waits until this rank's file is written, and cancels the session: other ranks are hardly
  /// waited for. Failures are lost: call finish first.
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  /// Memory for the copies, owned by the caller, until the writer ends or gets another. Without it,
  /// or when it is too small for a save, the writer allocates and keeps its own. Not while a save
  /// is in flight.
  void use_buffer(std::span<std::byte> buffer);

  /// Copies the shards and returns; the session saves the copies on a thread of the writer's. Waits
  /// first for the save before it, and throws what that one failed with; nothing is started then.
  /// All ranks start the same saves. Cost: one copy of the shards.
  void start(int64_t step, const std::vector<ShardView>& shards,
             std::optional<SaveDescription> description = std::nullopt);

  /// Whether a save is still in flight.
  bool busy() const;
  /// Waits until the last save is published; its path, or nothing when none was in flight. Throws
  /// what it failed with. Timeout when this rank's own disk takes more than twice the session's
  /// deadline.
  std::optional<std::string> finish();

 private:
  SaveSession* session_;
  std::span<std::byte> given_;
  std::vector<std::byte> own_;
  std::future<std::string> saved_;  // valid while a save is in flight
};

/// Bytes that a snapshot of the shards takes: what use_buffer should be given.
int64_t snapshot_bytes(const std::vector<ShardView>& shards);

}  // namespace strait::checkpoint
