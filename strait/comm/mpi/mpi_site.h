// What the communicators of one MPI process share: its messages, its host's memory and board, where
// every rank lives, and how it waits.
#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "strait/base/wait_clock.h"
#include "strait/collective/schedule.h"
#include "strait/comm/failure.h"
#include "strait/comm/mpi/host_board.h"
#include "strait/comm/mpi/host_memory.h"
#include "strait/comm/mpi/messages.h"
#include "strait/topology/cluster.h"

namespace strait::comm {

/// Thread-safe.
struct MpiSite {
  MpiSite(Messages& the_messages, HostMemory& the_memory, const Cluster& the_cluster,
          std::vector<int64_t> ranks_here)
      : messages(the_messages),
        memory(the_memory),
        board(the_memory.board(), the_memory.ranks()),
        cluster(the_cluster),
        here(std::move(ranks_here)) {
    places.assign(static_cast<size_t>(cluster.ranks), -1);
    for (size_t at = 0; at < here.size(); ++at) places[here[at]] = static_cast<int64_t>(at);
  }

  int64_t rank() const { return here[memory.own()]; }
  /// Place of a rank on this host, or -1 when it lives elsewhere.
  int64_t place(int64_t of_rank) const { return places[of_rank]; }
  WaitRow& row() const { return board.row(memory.own()); }
  bool rung() const { return board.rung(); }

  /// Of a link of `level`.
  double bytes_per_second(int64_t level) const {
    return rate_of ? rate_of(level) : cluster.levels[level].bytes_per_second;
  }

  /// Copies a chunk inside the host, and tells how many bytes it copied: what the ledger learns.
  int64_t copy_chunk(const void* source, void* destination, int64_t bytes) const;

  /// Throws for what the board's alarm says. Precondition: rung().
  [[noreturn]] void raise_alarm(const Call& call) const;
  /// The ranks among `late` whose process is gone.
  std::vector<int64_t> gone(const std::vector<int64_t>& late) const;
  /// What the verdict about a wait of this rank that ends now is made from: what the ranks of this
  /// host stood at when the first of them gave up, processes that are gone as missing, the others
  /// as `inquire` finds them.
  std::vector<trace::Standing> standings(double deadline_seconds) const;
  /// Those of this host alone.
  std::vector<trace::Standing> standings_here(double deadline_seconds) const;

  Messages& messages;
  HostMemory& memory;
  HostBoard board;
  const Cluster cluster;
  const std::vector<int64_t> here;  // ranks of this host, ascending
  std::vector<int64_t> places;      // by rank
  std::optional<collective::Algorithm> algorithm;
  double spin_seconds = 0;
  mutable WaitClock clock;                       // of deadlines
  std::function<void(const Call&)> at_turn;      // MpiOptions
  std::function<int64_t()> repeats;              // likewise
  std::function<double(int64_t level)> rate_of;  // likewise
  /// Asks the ranks of other hosts where they stand; those that do not answer in time have told
  /// nothing.
  std::function<void(std::vector<trace::Standing>& ranks, double deadline_seconds)> inquire;
};

/// One wait of a call: until `ready`, the deadline, or an alarm. While messages are under way it
/// drives them and sleeps briefly in between; otherwise it blocks until `signal` tells.
struct HostWait {
  const MpiSite& site;
  const Call& call;
  SteadyTime deadline;  // on the site's clock
  HostSignal& signal;
  uint64_t communicator = 0;

  /// Returns when ready() is true. Throws PeerLost on an alarm and when a rank of late() is gone,
  /// Timeout when the deadline passes. `drive` is called now and then and tells whether messages
  /// are under way; `ready` may depend on what it did.
  void until(const std::function<bool()>& ready, const std::function<bool()>& drive,
             const std::function<std::vector<int64_t>()>& late) const;

 private:
  bool spin(const std::function<bool()>& ready, const std::function<bool()>& drive) const;
  [[noreturn]] void give_up(const std::vector<int64_t>& late, bool is_gone) const;
};

}  // namespace strait::comm
