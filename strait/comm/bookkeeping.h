// What the ranks of a run tell each other outside of programs. It goes over a lane of its own,
// whose ledger counts it apart from what training moves.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "strait/comm/communicator.h"

namespace strait::comm {

/// All ranks, on a lane that no program has. Drain its ledger when idle.
Communicator& bookkeeping_lane(World& world);

/// What is asked when, for messages, and how long others may take.
struct Occasion {
  std::string question;
  int64_t step = 0;
  double deadline_seconds = 120;
};

/// Replaces `values`, equally many on all ranks, by their sums. Blocking; one all-reduce. Errors:
/// PeerLost, Timeout.
void sum_over_ranks(World& world, std::span<int64_t> values, const Occasion& occasion);

}  // namespace strait::comm
