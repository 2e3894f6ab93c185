// What the tests of the threads backend share: clusters by hand, values, and ranks on threads.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "strait/base/errors.h"
#include "strait/comm/threads/thread_world.h"

namespace strait::comm {

/// One level for 1 rank or an odd world; pairs and a world above them otherwise.
inline Cluster test_cluster(int64_t ranks) {
  Cluster cluster;
  cluster.name = "test";
  cluster.ranks = ranks;
  if (ranks % 2 == 0) {
    cluster.levels = {{"pair", 2, 1e9, 1e-6, 1}, {"world", ranks / 2, 1e8, 1e-5, 1}};
  } else {
    cluster.levels = {{"world", ranks, 1e8, 1e-5, 1}};
  }
  return cluster;
}

inline std::vector<int64_t> all_ranks(int64_t size) {
  std::vector<int64_t> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline int64_t total(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

inline std::vector<int64_t> offsets_of(const std::vector<int64_t>& counts) {
  std::vector<int64_t> offsets(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), offsets.begin() + 1);
  return offsets;
}

/// Runs body(world, communicator over all ranks) on one thread per rank.
template <class Body>
void on_all_ranks(ThreadWorlds& worlds, const Body& body) {
  run_ranks(worlds,
            [&](World& world) { body(world, world.communicator(all_ranks(world.size()), 0)); });
}

/// Message of the error of type E that `body` throws; fails by its text otherwise.
template <class E, class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

}  // namespace strait::comm
