// The cost model: sums up a program in closed form, without running or simulating it. Time by
// simple rates.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strait/program/program.h"
#include "strait/topology/cluster.h"
#include "strait/trace/ledger.h"

namespace strait::cost {

/// Sums over one execution of the programs of a step kind.
struct Cost {
  double compute_seconds = 0;        // a rank of the class that takes longest, with the next line
  double communication_seconds = 0;  // of the same rank, lanes summed, nothing hidden
  double flops = 0;                  // mean over ranks
  Ledger traffic;                    // summed over all ranks, by operation and level
  std::vector<int64_t> level_bytes;  // payload per level, summed over all ranks
};

/// Seconds of one compute op on idle links: floating-point operations over the model's rate in the
/// dtype plus bytes over the memory rate, or the codec's.
double compute_seconds(const program::Program& program, const program::Op& op,
                       const Cluster& cluster);

/// Seconds of one transfer on an idle lane, by the algorithm that collective::choose takes. `peer`:
/// the op's, evaluated, for messages.
double transfer_seconds(const program::Program& program, const program::Op& op, int64_t rank,
                        const Cluster& cluster, int64_t peer = 0);

/// Of a message that shares its link with no other.
double lone_message_seconds(const program::Program& program, const program::Op& op, int64_t rank,
                            const Cluster& cluster, int64_t peer);

/// Sums the programs of all rank classes; each body is priced once and multiplied. Precondition:
/// groups lie alike on the levels, and the ranks of a class send their messages equally far. Cost:
/// O(operations); with several classes or member lists O(ranks) per group.
Cost price(std::span<const program::Program> classes, const Cluster& cluster);
/// The same for one class.
inline Cost price(const program::Program& program, const Cluster& cluster) {
  return price(std::span(&program, 1), cluster);
}

}  // namespace strait::cost
