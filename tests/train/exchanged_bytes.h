// Closed forms of exchanges over pairs of ranks, and what a ledger says, both by operation and
// level.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "strait/job/job.h"
#include "strait/trace/ledger.h"

namespace strait::test {

// Loss, count, squared norm, stop requests, elements that are not finite: in fp64.
inline constexpr int64_t kAgreedBytes = 5 * 8;

/// Pairs of ranks, and what connects them.
inline constexpr const char* kPairs =
    "cluster.levels=[{ name = \"pair\", size = 2, gb_per_second = 4.0, latency_microseconds = 1.0 "
    "}, { name = \"world\", size = 0, gb_per_second = 0.4, latency_microseconds = 5.0 }]";

/// Bytes by operation and level.
using Bytes = std::map<std::pair<std::string, int64_t>, int64_t>;

struct Team {
  int64_t group, stride;
};

/// One vector of V bytes moved by one exchange among `group` ranks, `stride` apart: over
/// the inner level of pairs (level 0) and over the rest (level 1).
/// Hierarchical where the group spans several pairs: across, a byte enters each further pair once;
/// a few agreed scalars go direct.
inline void add_exchange(Bytes& bytes, const std::string& operation, int64_t vector_bytes,
                         const Team& team, bool direct = false) {
  const auto [group, stride] = team;
  const int64_t in_pair = stride == 1 ? std::min<int64_t>(group, 2) : 1;
  const int64_t pairs = group / in_pair;
  bytes[{operation, 0}] += vector_bytes * (direct ? in_pair - 1 : group - pairs);
  bytes[{operation, 1}] += vector_bytes * (direct ? group - in_pair : pairs - 1);
}

inline Bytes bytes_of(const Ledger& ledger, int64_t steps) {
  Bytes bytes;
  for (const Traffic& row : ledger.rows()) {
    EXPECT_EQ(row.payload_bytes % steps, 0);
    EXPECT_EQ(row.metadata_bytes, 0);
    bytes[{row.operation, row.level}] += row.payload_bytes / steps;
  }
  std::erase_if(bytes, [](const auto& row) { return row.second == 0; });
  return bytes;
}

/// The ledger of a run of `steps`, the simulator and the cost model count `want` per step.
inline void expect_bytes(const Job& job, const Ledger& traffic, int64_t steps, const Bytes& want) {
  EXPECT_EQ(bytes_of(traffic, steps), want) << "runtime";
  EXPECT_EQ(bytes_of(job.simulated.traffic, 1), want) << "simulated";
  EXPECT_EQ(bytes_of(job.cost.traffic, 1), want) << "cost";
}

/// Payload and metadata of messages of a step, all of which are to be sent in the codec.
inline std::pair<int64_t, int64_t> coded_messages(const Ledger& ledger, int64_t steps,
                                                  const std::string& codec) {
  std::pair<int64_t, int64_t> bytes{0, 0};
  for (const Traffic& row : ledger.rows()) {
    if (row.operation != "send") continue;
    EXPECT_EQ(row.codec, codec);
    bytes.first += row.payload_bytes / steps;
    bytes.second += row.metadata_bytes / steps;
  }
  return bytes;
}

}  // namespace strait::test
