// One collective operation of one communicator, as its members meet in it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "strait/comm/communicator.h"
#include "strait/comm/failure.h"
#include "strait/comm/threads/hub.h"

namespace strait::comm {

/// What a member brings. Written before it counts as arrived, read by the others afterwards.
struct Offer {
  std::shared_ptr<const Call> call;
  const void* source = nullptr;
  void* destination = nullptr;
  void* scratch = nullptr;
};

/// Invariant: buffers of the members are read only between begin_reading() == true and
/// end_reading(), and never after `failed` was seen with no reader left. So a member may leave, and
/// its caller may free the buffers, when all have finished, or when the round has failed and no
/// reader is left.
class Round {
 public:
  Round(int64_t members, int64_t num_levels);

  static constexpr int64_t kAbsent = -1;
  static constexpr int64_t kFinished = INT64_MAX;

  std::vector<Offer> offers;                         // by position
  std::unique_ptr<std::atomic<int64_t>[]> progress;  // kAbsent, steps made, or kFinished
  std::unique_ptr<std::atomic<int64_t>[]> sent;      // [position * levels + level] bytes
  std::atomic<int64_t> arrived{0};
  std::atomic<int64_t> finished{0};
  std::atomic<bool> failed{false};
  Failure failure;   // set before `failed`
  int64_t left = 0;  // guarded by the mutex of Rounds

  bool begin_reading();
  void end_reading() { readers_.fetch_sub(1); }
  bool has_readers() const { return readers_.load() > 0; }

 private:
  std::atomic<int64_t> readers_{0};
};

/// The rounds of one communicator by sequence number, and the signal of its members. Thread-safe.
class Rounds {
 public:
  Rounds(std::shared_ptr<Hub> hub, std::vector<int64_t> members, uint64_t number);

  const std::vector<int64_t>& members() const { return members_; }  // ranks of the world
  int64_t size() const { return static_cast<int64_t>(members_.size()); }
  int64_t num_levels() const { return static_cast<int64_t>(hub_->cluster.levels.size()); }
  int64_t level_between(int64_t from, int64_t to) const { return levels_[from * size() + to]; }
  Hub& hub() const { return *hub_; }
  uint64_t number() const { return number_; }  // of the communicator, in the table of waits
  Signal& signal() const { return *signal_; }

  /// The round `sequence`, made on first use. Every member leaves each round exactly once.
  std::shared_ptr<Round> find(int64_t sequence);
  /// The first failure of a round stands; the others find it.
  void fail(Round& round, const Failure& failure);
  void leave(int64_t sequence, Round& round);

 private:
  const std::shared_ptr<Hub> hub_;
  const std::vector<int64_t> members_;
  const uint64_t number_;
  std::vector<int64_t> levels_;  // by (from, to); 0 on the diagonal
  const std::shared_ptr<Signal> signal_;
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Round>> rounds_;
};

}  // namespace strait::comm
