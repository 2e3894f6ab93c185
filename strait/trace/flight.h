// The flight record: the last operations of one rank, each with when it was issued, started and
// ended. Written while the rank runs, readable by another thread at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace strait::trace {

/// The text of an operation in a loop, with places for indices: pieces[0] index[0] pieces[1] ...
struct OperationText {
  static constexpr int kLoops = 4;
  struct Index {
    int64_t constant = 0;
    int loop = 0;  // position in `loops`
    int64_t scale = 0;
    int other_loop = 0;
    int64_t other_scale = 0;
    int64_t modulo = 0;  // 0: none; else of what is never negative
    int64_t at(const std::array<int64_t, kLoops>& values) const;
  };
  std::vector<std::string> pieces = {""};
  std::vector<Index> indices;
  std::vector<int> loops;  // ids of the loops that it depends on, at most kLoops

  /// Values of its loops, taken from those of all loops by id.
  std::array<int64_t, kLoops> pick(const std::vector<int64_t>& all) const;
  /// Writes the text into `out` and returns its length: cut at `size`. No allocation.
  size_t write(const std::array<int64_t, kLoops>& values, char* out, size_t size) const;
  std::string str(const std::array<int64_t, kLoops>& values) const;
};

/// An operation as it stands in the program.
struct FlightOperation {
  OperationText text;
  std::string stream;          // "compute", "world.0"
  std::vector<int64_t> group;  // ranks of a transfer
  int64_t bytes = 0;           // of a transfer's whole vector
};

enum class FlightState : uint8_t { kIssued, kRunning, kDone, kFailed };
/// "issued", "running", "done", "failed".
const char* flight_state_name(FlightState state);

/// One executed operation, as a reader gets it. Times in now_seconds(); 0 = not yet.
struct FlightEntry {
  int64_t number = 0;  // since the record began
  int64_t step = 0;
  int64_t index = 0;  // in the program order of its step
  std::string operation, stream;
  std::vector<int64_t> group;
  int64_t bytes = 0;
  FlightState state = FlightState::kIssued;
  double issued = 0, started = 0, ended = 0;
};

/// Where the times of one operation go; empty marks do nothing. Any thread. The record outlives it.
class FlightMark {
 public:
  FlightMark() = default;
  void begin(double now) const { set(FlightState::kRunning, now); }
  void end(double now, bool failed) const {
    set(failed ? FlightState::kFailed : FlightState::kDone, now);
  }

 private:
  friend class FlightRecord;
  struct Slot {
    std::atomic<int64_t> number{-1};
    std::atomic<int64_t> operation{0}, step{0}, index{0};
    std::array<std::atomic<int64_t>, OperationText::kLoops> loops{};
    std::atomic<double> issued{0}, started{0}, ended{0};
    std::atomic<FlightState> state{FlightState::kIssued};
  };
  FlightMark(Slot* slot, int64_t number) : slot_(slot), number_(number) {}
  void set(FlightState state, double now) const {
    // A slot that a later operation has taken is left alone.
    if (slot_ == nullptr || slot_->number.load(std::memory_order_acquire) != number_) return;
    (state == FlightState::kRunning ? slot_->started : slot_->ended)
        .store(now, std::memory_order_release);
    slot_->state.store(state, std::memory_order_release);
  }
  Slot* slot_ = nullptr;
  int64_t number_ = 0;
};

/// One thread issues, any thread reads. Cost of issue: some 20 stores; no allocation.
class FlightRecord {
 public:
  static constexpr int64_t kEntries = 1000;
  FlightRecord();
  /// Number of a new operation for issue(). Once per operation of a program.
  int add(FlightOperation operation);
  FlightMark issue(int operation, int64_t step, int64_t index,
                   const std::array<int64_t, OperationText::kLoops>& loops, double now);
  /// The last kEntries operations, oldest first, without any that is being overwritten.
  std::vector<FlightEntry> entries() const;

 private:
  static constexpr int64_t kSlots =
      1024;                   // more than kEntries: the oldest are the first overwritten
  mutable std::mutex mutex_;  // guards operations_
  std::vector<std::shared_ptr<const FlightOperation>> operations_;
  std::unique_ptr<FlightMark::Slot[]> slots_;
  std::atomic<int64_t> issued_{0};
};

}  // namespace strait::trace
