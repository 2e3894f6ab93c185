// Replays a program on a virtual clock: compute one op after another, transfers on their lanes, lanes of
// one level sharing its bandwidth. Bytes are counted as they leave the virtual links, transfer by transfer
// of the collective's schedule.
#pragma once

#include <cstdint>
#include <vector>

#include "strait/program/program.h"
#include "strait/topology/cluster.h"
#include "strait/trace/ledger.h"
#include "strait/trace/spans.h"

namespace strait::sim {

/// What a simulation of one program found. Times are those of one rank of the class; traffic is summed
/// over all ranks.
struct Result {
  double seconds = 0;
  double compute_seconds = 0;
  double exposed_seconds = 0;  // compute waited for transfers
  Ledger traffic;
  std::vector<int64_t> level_bytes;
  int64_t events = 0;  // ops and transfers that ended
};

/// Simulates one execution of `program`: from idle links or, when it leaves carries under way, right after
/// another execution of it, so that what a step leaves to the next one is paid for. Ranks of the class behave alike, so one of them
/// is replayed and its transfers are counted for all groups that tile the world. `recorder`, when given,
/// takes the spans of that rank in virtual seconds. Cost: O(instances * lanes).
Result simulate(const program::Program& program, const Cluster& cluster,
                trace::Recorder* recorder = nullptr);

/// Bytes by level that one op sends, all groups of the world together, counted transfer by transfer.
std::vector<int64_t> scheduled_bytes(const program::Program& program, const program::Op& op,
                                     const Cluster& cluster);

}  // namespace strait::sim
