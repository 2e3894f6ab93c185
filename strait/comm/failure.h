// A failure as a value, so that several threads can throw it, each an exception of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "strait/base/errors.h"
#include "strait/comm/communicator.h"

namespace strait::comm {

struct Failure {
  enum class Kind : uint8_t { kTimeout, kPeerLost, kUser, kInternal };
  Kind kind = Kind::kInternal;
  std::string message;
  ErrorPlace place;
};

/// Throws the error type of `failure`, its message preceded by `prefix`.
[[noreturn]] void raise(const Failure& failure, const std::string& prefix = "");
/// The exception now being handled, as a value. Types that Strait does not know become kInternal.
Failure current_failure();

/// `all-gather "label" of step 3 on rank 1`.
std::string describe(const Call& call, int64_t rank);
/// Operation and step of a call, and a rank to blame when it is not negative.
ErrorPlace place_of(const Call& call, int64_t rank);

/// Set once, when a rank fails or the world ends; every wait looks at it.
class Alarm {
 public:
  /// True for the first call, which decides rank and reason. `rank` < 0: no rank is to blame.
  bool ring(int64_t rank, const std::string& reason);
  bool rung() const { return rung_.load(std::memory_order_acquire); }
  /// Throws PeerLost. Precondition: rung().
  [[noreturn]] void raise_for(const Call& call, int64_t own_rank) const;

 private:
  std::mutex mutex_;
  std::atomic<bool> rung_{false};
  int64_t rank_ = -1;
  std::string reason_;
};

}  // namespace strait::comm
