// Tiles that ranks of one process read where they lie, in another rank's buffer: each has a flag
// that tells which epoch's rows it holds (FLUX, Chang et al. 2024: the signals of its gather; here
// nothing is copied before it is multiplied).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "strait/comm/signal.h"

namespace strait::comm {

/// Epochs count up and flags are never cleared; they may wrap. A rank may overwrite its tiles once
/// all others have finished the epoch before. Thread-safe: each rank from a thread of its own.
///
/// Costs: a publication is a store with release and a wake-up if somebody sleeps; a wait whose tile
/// is there is a load with acquire. Others spin for `spin_seconds`, then block, so that ranks may
/// be more than cores.
class TileBoard {
 public:
  /// `tiles` of every rank.
  TileBoard(int64_t ranks, int64_t tiles, double spin_seconds = 1e-6);

  int64_t ranks() const { return ranks_; }
  int64_t tiles() const { return tiles_; }

  /// `rank` has written `tile` for `epoch`; whoever awaits it sees what was written before.
  void publish(int64_t rank, int64_t tile, uint32_t epoch);
  /// Blocks until `tile` of `owner` holds the rows of `epoch` or a later one. Timeout naming the
  /// owner when the deadline passes.
  void await(int64_t owner, int64_t tile, uint32_t epoch, double deadline_seconds);

  /// `rank` reads nothing of `epoch` any more.
  void finish(int64_t rank, uint32_t epoch);
  /// Blocks until all ranks but `rank` have finished `epoch`. Timeout naming the first that has
  /// not.
  void await_readers(int64_t rank, uint32_t epoch, double deadline_seconds);

 private:
  /// Alone on its cache line.
  struct alignas(64) Flag {
    std::atomic<uint32_t> epoch{0};
    bool holds(uint32_t wanted) const {
      return static_cast<int32_t>(epoch.load(std::memory_order_acquire) - wanted) >= 0;
    }
  };
  void set(Flag& flag, uint32_t epoch);
  void wait(const Flag& flag, uint32_t epoch, double deadline_seconds, int64_t owner,
            const std::string& what);

  const int64_t ranks_, tiles_;
  std::unique_ptr<Flag[]> published_;  // [rank][tile]
  std::unique_ptr<Flag[]> finished_;   // [rank]
  Signal signal_;
};

}  // namespace strait::comm
