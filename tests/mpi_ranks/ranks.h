// The one world of this process, for the tests that run in it.
#pragma once

#include <atomic>

#include "strait/comm/mpi/mpi_world.h"
#include "tests/comm/thread_ranks.h"

namespace strait::comm {

struct Ranks {
  MpiSession& session;
  World& world;
  MpiOptions options;

  static Ranks*& slot();
  /// How often this process copies a chunk of another rank.
  static std::atomic<int64_t>& repeats();
  static Ranks& get() { return *slot(); }
  Communicator& all(int64_t lane = 0) const {
    return world.communicator(all_ranks(world.size()), lane);
  }
};

}  // namespace strait::comm
