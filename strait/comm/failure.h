// A failure as a value, so that several threads can throw it, each an exception of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "strait/base/errors.h"
#include "strait/comm/communicator.h"
#include "strait/comm/wait_table.h"

namespace strait::comm {

struct Failure {
  enum class Kind : uint8_t { kTimeout, kPeerLost, kNonFinite, kNothingFits, kUser, kInternal };
  Kind kind = Kind::kInternal;
  std::string message;
  ErrorPlace place;
};

/// Throws the error type of `failure`, its message preceded by `prefix`.
[[noreturn]] void raise(const Failure& failure, const std::string& prefix = "");
/// What a rank that ends by it tells the others.
Cause cause_of(const Failure& failure);
/// The exception now being handled, as a value. Types that Strait does not know become kInternal.
Failure current_failure();

/// `all-gather "label" of step 3 on rank 1`.
std::string describe(const Call& call, int64_t rank);
/// Operation and step of a call, and a rank to blame when it is not negative.
ErrorPlace place_of(const Call& call, int64_t rank);

/// The Timeout of `call` on `rank`, whose wait passed its deadline with `late` (ranks) not come.
/// Its place is that of the rank which holds up the others, found by following `wait` through what
/// all `ranks` stand at; the first of `late` and the call itself when that leads nowhere.
Failure timeout(const Call& call, int64_t rank, const std::vector<int64_t>& late,
                const std::vector<trace::Standing>& ranks, const trace::Wait& wait);

/// The PeerLost of `call` on `rank`, because the process of rank `peer` is gone; its place is what
/// that one was in last, or what it is missed in.
Failure lost(const Call& call, int64_t rank, int64_t peer,
             const std::vector<trace::Standing>& ranks, const trace::Wait& wait);

/// Set once, when a rank fails or the world ends; every wait looks at it.
class Alarm {
 public:
  /// True for the first call, which stands. `rank` gives up, < 0: the world ends; `place`: the rank
  /// to blame (`rank` when not set), its operation and step.
  bool ring(int64_t rank, const std::string& reason, const ErrorPlace& place, Cause cause);
  bool rung() const { return rung_.load(std::memory_order_acquire); }
  /// Throws what the cause says. Precondition: rung().
  [[noreturn]] void raise_for(const Call& call, int64_t own_rank) const;

 private:
  std::mutex mutex_;
  std::atomic<bool> rung_{false};
  int64_t rank_ = -1;
  std::string reason_;
  ErrorPlace place_;
  Cause cause_ = Cause::kLost;
};

}  // namespace strait::comm
