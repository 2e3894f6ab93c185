// One member's part in one collective operation: arrive, agree, pull, finish.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strait/comm/threads/mover.h"
#include "strait/comm/threads/rounds.h"

namespace strait::comm {

/// Bytes that this member sent in a round, by level.
using SentBytes = std::vector<int64_t>;

/// Runs `call` as round `sequence` of `rounds` for the member at `position`; blocks until all
/// members have finished reading this member's buffers. Throws Timeout, PeerLost, or what made
/// another member fail; the destination is undefined then, and no member touches this one's buffers
/// any more. `mover` copies and sums, and gives the memory that an algorithm needs in between.
SentBytes run_round(Rounds& rounds, int64_t sequence, int64_t position,
                    const std::shared_ptr<const Call>& call, Mover& mover);

/// Leaves round `sequence` without taking part; its other members get `failure`.
void refuse_round(Rounds& rounds, int64_t sequence, const Failure& failure);

}  // namespace strait::comm
