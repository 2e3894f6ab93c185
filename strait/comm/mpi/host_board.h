// What the ranks of one host write for each other to see: the alarm, the rows of the table of
// waits, and for every communicator how far each member is. Lies in shared memory; zero-filled
// memory is an empty board.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "strait/base/errors.h"
#include "strait/comm/communicator.h"
#include "strait/comm/last_step.h"
#include "strait/comm/mpi/host_signal.h"
#include "strait/comm/wait_table.h"

namespace strait::comm {

/// A member's buffers up to this size lie in the board itself: no window, and no wait for the
/// readers.
inline constexpr int64_t kInlineBytes = 4096;
/// Where a buffer of an offer lies, other than at an offset of the member's window.
inline constexpr int64_t kNowhere = -1, kInline = -2;

/// What a member brings to one collective.
struct HostOffer {
  uint64_t digest = 0;  // of operation, type, counts and root: equal on all members
  int64_t source = kNowhere, destination = kNowhere, scratch = kNowhere, row = kNowhere;
  int64_t operation = 0, dtype = 0, elements = 0;
  Label label;
};

/// One member of one communicator. Offers and inline buffers are used in turn: a member that
/// arrives at collective s + 1 has read what it needed of s, and all members arrive at s + 1 before
/// one begins s + 2.
struct alignas(64) HostSlot {
  alignas(64) std::atomic<int64_t> arrived;   // collectives offered so far
  alignas(64) std::atomic<int64_t> progress;  // collective * kStepsPerCollective + steps made
  alignas(64) std::atomic<int64_t> finished;  // collectives ended so far
  HostOffer offers[2];
  alignas(64) char source[2][kInlineBytes];
  alignas(64) char result[2][kInlineBytes];
};
inline constexpr int64_t kStepsPerCollective = int64_t{1} << 20;

/// Set once, when a rank fails.
struct HostAlarm {
  std::atomic<uint32_t> state;  // 0 quiet, 1 being written, 2 rung
  int64_t rank, blamed, step;   // blamed, step: -1 = not set
  Cause cause;
  std::array<char, 2048> reason;
  std::array<char, 160> operation;
};

/// The board of a host with `ranks` ranks. Thread-safe.
class HostBoard {
 public:
  static constexpr int64_t kChannels = 1024;
  static int64_t bytes(int64_t ranks);
  HostBoard(void* memory, int64_t ranks);

  /// The channel of a communicator (wait_table.h: communicator_number), the same on every member.
  /// InternalError when all are taken.
  int64_t channel(uint64_t communicator);
  HostSignal& signal(int64_t channel) const;
  HostSlot& slot(int64_t channel, int64_t place) const;
  WaitRow& row(int64_t place) const;
  LastStep& last_step() const;
  /// The most steps that a rank of this host has begun, agreed. After last_step().ask().
  int64_t settle_last_step() const;

  /// True for the first call, which stands.
  bool ring(int64_t rank, const std::string& reason, const ErrorPlace& place, Cause cause);
  bool rung() const { return alarm().state.load(std::memory_order_acquire) == 2; }
  struct Rung {
    int64_t rank = -1;
    std::string reason;
    ErrorPlace place;
    Cause cause = Cause::kLost;
  };
  /// Precondition: rung().
  Rung rung_by() const;

 private:
  HostAlarm& alarm() const;

  char* memory_;
  int64_t ranks_;
};

}  // namespace strait::comm
