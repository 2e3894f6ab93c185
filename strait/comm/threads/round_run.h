// One member's part in one collective operation: arrive, agree, pull, finish.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "strait/comm/threads/rounds.h"

namespace strait::comm {

/// Bytes that this member sent in a round, by level.
using SentBytes = std::vector<int64_t>;

/// Runs `call` as round `sequence` of `rounds` for the member at `position`; blocks until all
/// members have finished reading this member's buffers. Throws Timeout, PeerLost, or what made
/// another member fail; the destination is undefined then, and no member touches this one's buffers
/// any more. `scratch` grows when an algorithm needs it.
SentBytes run_round(Rounds& rounds, int64_t sequence, int64_t position,
                    const std::shared_ptr<const Call>& call, std::vector<char>& scratch);

/// Leaves round `sequence` without taking part; its other members get `failure`.
void refuse_round(Rounds& rounds, int64_t sequence, const Failure& failure);

}  // namespace strait::comm
