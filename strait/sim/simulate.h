// Replays the programs of all rank classes on a virtual clock: compute one op after another,
// transfers on their lanes, lanes of one level sharing its bandwidth, both sides of a transfer
// meeting. Bytes are counted as they leave the virtual links, transfer by transfer of the
// collective's schedule.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strait/program/program.h"
#include "strait/topology/cluster.h"
#include "strait/trace/ledger.h"
#include "strait/trace/spans.h"

namespace strait::sim {

/// What one rank did that stands for `count` ranks of its colour (program/colouring.h).
struct Representative {
  int64_t rank = 0, rank_class = 0, count = 1;
  double seconds = 0;  // of its own program
  double compute_seconds = 0;
  double exposed_seconds = 0;  // compute waited while the rank's links were at work
  double bubble_seconds =
      0;  // compute waited for other ranks: the links were idle, or it had ended
};

/// What a simulation of one step found. Shares of the step are means over ranks; traffic is summed
/// over all ranks.
struct Result {
  double seconds = 0;  // until the last rank has ended
  double compute_seconds = 0, exposed_seconds = 0, bubble_seconds = 0;
  Ledger traffic;
  std::vector<int64_t> level_bytes;
  int64_t events = 0;  // ops and transfers that ended, of all representatives
  int64_t rank_classes = 1;
  std::vector<Representative> representatives;
  double bubble_share() const { return seconds > 0 ? bubble_seconds / seconds : 0; }
};

/// Simulates one execution of the programs of a step kind, one per rank class: from idle links or,
/// when they leave carries under way, right after another execution, so that what a step leaves to
/// the next one is paid for. One rank of every colour is replayed. Precondition: the programs are
/// legal (verify). `recorders`, when given, takes a recorder per representative with its spans in
/// virtual seconds. Errors (UserError): a group or stream of a level that the cluster lacks. Cost:
/// O(instances * lanes) per representative, O(ranks * groups) for what is counted.
Result simulate(std::span<const program::Program> classes, const Cluster& cluster,
                std::vector<trace::Recorder>* recorders = nullptr);
/// The same for one class.
inline Result simulate(const program::Program& program, const Cluster& cluster,
                       std::vector<trace::Recorder>* recorders = nullptr) {
  return simulate(std::span(&program, 1), cluster, recorders);
}

}  // namespace strait::sim
