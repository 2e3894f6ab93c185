// What every rank is doing and waiting for right now, in memory that all of them can read: plain
// arrays of lock-free atomics without pointers, for threads and for processes that share a window.
// Its reader is the verdict when a deadline passes (strait/trace/verdict.h).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "strait/base/clock.h"
#include "strait/trace/verdict.h"

namespace strait::comm {

/// A value that one side writes now and then and others read at any time without holding it up.
/// Zero-filled memory is an empty cell. Writers exclude each other. A writer that is held up or
/// dies in between leaves the value before, whole: the new one goes to another place. Cost of
/// store: one atomic exchange and a copy of T.
template <class T>
class SharedCell {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);
  static_assert(std::atomic<uint64_t>::is_always_lock_free);

 public:
  void store(const T& value) {
    const uint64_t even = lock();
    std::array<uint64_t, kWords> raw;
    std::memcpy(raw.data(), &value, sizeof(T));
    // Release, one by one: who reads a new word also sees the odd count.
    Words& words = place(even / 2 + 1);
    for (size_t i = 0; i < kWords; ++i) words[i].store(raw[i], std::memory_order_release);
    count_.store(even + 2, std::memory_order_release);
  }

  T load() const {
    std::array<uint64_t, kWords> raw{};
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const uint64_t newest = count_.load(std::memory_order_acquire) / 2;
      const Words& words = place(newest);
      for (size_t i = 0; i < kWords; ++i) raw[i] = words[i].load(std::memory_order_acquire);
      // The value after the next one, whose count is odd while it is written, gets the same place.
      if (count_.load(std::memory_order_relaxed) < 2 * newest + 3) break;
    }
    T value;
    std::memcpy(static_cast<void*>(&value), raw.data(), sizeof(T));
    return value;
  }

 private:
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);
  static constexpr int kAttempts = 10000;  // each lost to two stores that began within one read
  static constexpr double kPatienceSeconds = 1.0;
  using Words = std::array<std::atomic<uint64_t>, kWords>;

  Words& place(uint64_t number) { return places_[number % 2]; }
  const Words& place(uint64_t number) const { return places_[number % 2]; }

  /// The even count before; it is odd then. Takes over from a writer that must have died.
  uint64_t lock() {
    double until = 0;
    for (int attempt = 0;; ++attempt) {
      uint64_t count = count_.load(std::memory_order_relaxed);
      if (count % 2 == 0 &&
          count_.compare_exchange_weak(count, count + 1, std::memory_order_acquire))
        return count;
      if (attempt < 100) continue;
      if (until == 0) until = now_seconds() + kPatienceSeconds;
      if (count % 2 == 1 && now_seconds() > until) return count - 1;
      std::this_thread::yield();
    }
  }

  // Twice the number of values stored; odd while the next is written.
  std::atomic<uint64_t> count_{0};
  std::array<Words, 2> places_{};
};

/// Text of fixed size; longer ones are cut and end in "..".
struct Label {
  std::array<char, 128> text{};
  Label() = default;
  explicit Label(std::string_view whole);
  std::string_view view() const;
};

/// One rank's row. Thread-safe. Zero-filled memory is a row that has told nothing. What is written
/// stays until the next operation begins: a wait that failed remains visible, so that those who
/// fail a little later follow it too.
class WaitRow {
 public:
  static constexpr int kLanes = 24;

  /// The rank's own thread is inside something that waits for no other rank, since `now`.
  void busy(std::string_view operation, int64_t step, int64_t index, double now = now_seconds());
  /// What busy() told has ended at `now`: the rank is between its operations. Cost: one store.
  void idle(double now) {
    if (writable(0)) idle_since_.store(now, std::memory_order_release);
  }
  /// The rank's own thread waits for its operations on `communicator`.
  void waits(uint64_t communicator);
  /// It waits for `peer` to take what it sent there.
  void waits_for_peer(uint64_t communicator, int64_t peer, std::string_view operation,
                      int64_t step);
  /// The rank's program has ended.
  void ended();
  /// From now on nothing is written. For whoever sets off the alarm, on all rows: what they show
  /// then is what the verdicts and the flight records of all ranks are made from.
  void freeze() { frozen_.store(1, std::memory_order_release); }
  /// The run has failed.
  bool frozen() const { return frozen_.load(std::memory_order_acquire) != 0; }
  /// The rank falls silent inside `operation`: nothing new is written, only what has begun may end.
  /// For injected faults.
  void lose(std::string_view operation, int64_t step);
  /// The rank's thread of progress is alive. Optional: among members that are all in a transfer,
  /// the one whose beats stopped is the one to blame. Cost: one store.
  void beat(double now) { beat_.store(now, std::memory_order_relaxed); }
  /// Steps that the rank has begun, where it does not meet the others in every one (LastStep).
  std::atomic<int64_t>& steps_begun() { return steps_begun_; }
  /// The rank's process is gone, as another one knows; the row keeps its last words.
  void mark_gone() { gone_.store(1, std::memory_order_release); }

  /// Number of the lane of a communicator, found or made; -1 when all lanes are taken: every call
  /// below then does nothing and the verdict knows less. `members`: ranks, ascending.
  int open(uint64_t communicator, const std::vector<int64_t>& members);
  /// A collective was issued on the lane. Pairwise operations are not counted.
  void issue(int lane);
  /// An operation whose turn has come. `number`: of the collective, counted from 0 on this
  /// communicator; for a pairwise one that of the next collective, and `peer` the rank it needs.
  struct Called {
    int64_t number = 0;
    std::string_view kind, operation;
    int64_t step = 0;
    int64_t peer = -1;
  };
  void call(int lane, const Called& called);
  /// The operation at its turn waits for one of this rank on another communicator.
  void hold(int lane, uint64_t by);
  /// The other members can see this rank in the operation.
  void join(int lane);
  /// It has ended well. A failed one stays as it is.
  void end(int lane);

  /// Copies what the row shows, unless that was done less than `window_seconds` ago: the first wait
  /// that passes its deadline keeps the evidence before failures spread and change it.
  void keep(double now, double window_seconds);

  /// What the row shows now.
  trace::Standing standing() const;
  /// What it showed when it was kept last; now when it never was.
  trace::Standing kept_standing() const;

 private:
  struct Activity {
    uint64_t kind = 0;  // 0 nothing told, 1 busy, 2 waiting, 3 ended
    int64_t step = -1, index = -1, peer = -1;
    double since = 0;
    uint64_t communicator = 0;
    Label operation;
  };
  struct Turn {
    uint64_t turn = 0;  // trace::LaneStanding::Turn
    int64_t number = 0, step = -1, peer = -1;
    uint64_t held_by = 0;
    double since = 0;
    std::array<char, 16> kind{};
    Label operation;
  };
  struct Members {
    int64_t first = 0, stride = 0, count = 0;  // stride 0: they form no such row
  };
  struct Lane {
    std::atomic<uint64_t> communicator;
    std::atomic<int64_t> issued;
    SharedCell<Members> members;
    SharedCell<Turn> turn;
    std::atomic<int64_t> kept_issued;
    SharedCell<Turn> kept_turn;
  };
  bool endable(int lane) const { return lane >= 0 && frozen_.load(std::memory_order_acquire) == 0; }
  bool writable(int lane) const {
    return endable(lane) && lost_.load(std::memory_order_acquire) == 0;
  }
  static trace::LaneStanding lane_standing(const Lane& lane, bool kept);
  trace::Standing make_standing(bool kept) const;

  std::atomic<uint64_t> frozen_{0}, lost_{0}, gone_{0};
  std::atomic<double> beat_{0}, kept_beat_{0};
  std::atomic<int64_t> steps_begun_{0};
  std::atomic<double> idle_since_{0}, kept_idle_since_{0};
  std::atomic<double> kept_at_{0};  // now_seconds(); negative while it is being kept
  SharedCell<Activity> kept_activity_;
  SharedCell<Activity> activity_;
  std::array<Lane, kLanes> lanes_{};
};
static_assert(std::is_standard_layout_v<WaitRow> && std::is_trivially_destructible_v<WaitRow>);

/// Rows by rank; null = out of reach, which counts as present and untold. Owns nothing.
using WaitRows = std::vector<WaitRow*>;

int64_t most_steps_begun(const WaitRows& rows);

/// What all ranks stand at, or stood at when their rows were kept. Irregular groups get the ranks
/// whose rows show the communicator.
std::vector<trace::Standing> standings(const WaitRows& rows, bool kept = false);

/// What the verdict about a wait that has just passed its deadline is made from: keeps all rows,
/// unless another deadline passed shortly before, and returns what was kept.
std::vector<trace::Standing> evidence(const WaitRows& rows, double deadline_seconds);

/// A number for the communicator of (members, lane): the same on every member, never 0.
uint64_t communicator_number(const std::vector<int64_t>& members, int64_t lane);

}  // namespace strait::comm
