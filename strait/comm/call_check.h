// Checks of one member's call that need no other member, and of two members' calls against each
// other.
#pragma once

#include <cstdint>

#include "strait/collective/schedule.h"
#include "strait/comm/communicator.h"

namespace strait::comm {

bool is_pairwise(Operation operation);  // send, receive
/// Whether Call::peer is the same on all members: broadcast, shift.
bool has_common_peer(Operation operation);

/// Throws UserError naming `rank` when counts, buffers, peer, dtype or deadline do not fit the
/// operation, or when buffers overlap in a way that the in-place rules do not allow.
void check_call(const Call& call, int64_t position, int64_t members, int64_t rank);

/// Parts of the whole vector: `counts`, or for an all-reduce that names one count that split
/// evenly.
std::vector<int64_t> part_counts(const Call& call, int64_t members);

/// Empty when two members' calls are sides of one collective; otherwise both, described.
std::string mismatch(const Call& own, int64_t own_position, const Call& other,
                     int64_t other_position);

/// Throws UserError unless `members` ascend inside 0..size-1 and `rank` is among them.
void check_members(const std::vector<int64_t>& members, int64_t rank, int64_t size);

}  // namespace strait::comm
