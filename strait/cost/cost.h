// The cost model: sums up a program in closed form, without running or simulating it. Time by simple rates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/program/program.h"
#include "strait/topology/cluster.h"
#include "strait/trace/ledger.h"

namespace strait::cost {

/// Sums over one execution of a program.
struct Cost {
  double compute_seconds = 0;        // one rank
  double communication_seconds = 0;  // one rank, lanes summed, nothing hidden
  double flops = 0;                  // one rank
  Ledger traffic;                    // summed over all ranks, by operation and level
  std::vector<int64_t> level_bytes;  // payload per level, summed over all ranks
};

/// Seconds of one compute op on idle links: floating-point operations over the model's rate in the dtype plus
/// bytes over the memory rate, or the codec's.
double compute_seconds(const program::Program& program, const program::Op& op,
                       const Cluster& cluster);

/// Seconds of one transfer on an idle lane, by the algorithm that collective::choose takes.
double transfer_seconds(const program::Program& program, const program::Op& op, int64_t rank,
                        const Cluster& cluster);

/// Sums a program; each body is priced once and multiplied. Precondition: every group tiles the world.
Cost price(const program::Program& program, const Cluster& cluster);

}  // namespace strait::cost
