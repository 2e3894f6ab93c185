// The form in which a call runs: which algorithm, and which buffers it needs beside the caller's.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strait/collective/schedule.h"
#include "strait/comm/communicator.h"
#include "strait/topology/cluster.h"

namespace strait::comm {

struct CallForm {
  collective::Request request;    // all-to-all: counts are the caller's row only
  int64_t whole_bytes = 0;        // of the whole vector (all-to-all: of the caller's source)
  bool needs_scratch = false;     // whole_bytes of partial sums
  bool destination_read = false;  // members read from each other's destinations
  /// The result has to be made beside the destination and added at the end, because others must
  /// find the result where they read and not what it is to be added to.
  bool staged = false;
};

/// `members`: ranks behind the positions. `forced`: this algorithm wherever the operation has it;
/// otherwise what collective::choose takes. The same on every member of a call that check_call
/// accepts.
CallForm form_of(const Call& call, const std::vector<int64_t>& members, const Cluster& cluster,
                 std::optional<collective::Algorithm> forced = std::nullopt);

}  // namespace strait::comm
