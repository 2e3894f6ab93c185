// Ranks tell each other a text, before a world exists and after its end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strait/comm/mpi/messages.h"

namespace strait::comm {

/// One thread at a time; all ranks make the same calls.
class RollCall {
 public:
  /// `has_ended`: whether the process of a rank is known to be gone.
  RollCall(Messages& messages, int64_t rank, int64_t size,
           std::function<bool(int64_t rank)> has_ended);
  ~RollCall();
  RollCall(const RollCall&) = delete;
  RollCall& operator=(const RollCall&) = delete;

  /// The texts of all ranks, by rank. Every rank tells every other one, so that each knows itself
  /// who does not come: Timeout after `deadline_seconds`, PeerLost when a process has ended before
  /// it told; both name the first such rank, and `purpose` as the operation. No further call may be
  /// made then. Cost: two messages to every rank.
  std::vector<std::string> meet(const std::string& text, const std::string& purpose,
                                double deadline_seconds);

 private:
  struct Round;
  void post(Round& round, const std::string& text);
  bool drive(Round& round);
  std::optional<int64_t> first_silent(const Round& round,
                                      const std::function<bool(int64_t)>& condition) const;

  Messages& messages_;
  const int64_t rank_, size_;
  const std::function<bool(int64_t)> has_ended_;
  // The one under way, and those that failed: MPI may still write there.
  std::vector<std::unique_ptr<Round>> rounds_;
};

}  // namespace strait::comm
