// Ranks as processes that mpirun or srun has started: one rank per process.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strait/collective/schedule.h"
#include "strait/comm/communicator.h"
#include "strait/memory/pool.h"
#include "strait/topology/cluster.h"

namespace strait::comm {

struct MpiOptions {
  std::optional<collective::Algorithm>
      algorithm;               // where an operation has it; else collective::choose
  double spin_seconds = -1.0;  // how long a wait spins before it blocks; < 0: by ranks and cores
  /// Bytes per second of a link of a level, asked on the thread that runs an operation; null: as
  /// the cluster says. For a probe, which learns them as it goes.
  std::function<double(int64_t level)> rate_of;
  /// For tests: called before this rank takes part in an operation, on the thread that will run it.
  std::function<void(const Call&)> at_turn;
  /// For tests: how often a chunk is copied inside a host, asked for each on the thread that copies
  /// it; null: once.
  std::function<int64_t()> repeats;
};

/// The process's membership in an MPI job. One at a time; made and destroyed on one thread.
class MpiSession {
 public:
  /// Told, on another thread, that MPI itself does not come back: MPI_Init after 120 s,
  /// MPI_Finalize after the deadline. Nothing but the end of the process helps.
  using Stuck = std::function<void(const std::exception_ptr& cause)>;

  /// MPI_Init_thread. InternalError when this MPI cannot serve several threads in turn.
  explicit MpiSession(Stuck stuck = {});
  ~MpiSession();
  /// Waits for all ranks to end theirs (MPI_Finalize), unless abandon() or end() was called before,
  /// or one of them does not come.
  void end();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

  int64_t rank() const;
  int64_t size() const;
  /// Ranks on this one's host, and the hosts' names by rank.
  int64_t ranks_on_host() const;
  const std::vector<std::string>& host_names() const;

  /// UserError when the ranks live on several hosts and this one has no network but loopback.
  void require_network() const;

  /// The world on `cluster`; collective, once. Inside a host data moves through shared memory,
  /// between hosts by MPI messages. UserError when the cluster is laid out for another number of
  /// ranks.
  ///   * The deadline of an operation counts from its turn. Any failed operation ends the world for
  ///     all ranks.
  ///   * A process that is gone is noticed at once on its own host, elsewhere by the deadline.
  ///   * The ledger counts a transfer inside a host at the rank that reads it, a message at its
  ///     sender.
  World& world(const Cluster& cluster, const MpiOptions& options = {});
  /// Memory that the other ranks of the host can reach: what operations take from there is not
  /// copied first. Precondition: world() was called.
  memory::PageSource& window();

  /// Of exchange() and end(); 120 s before. Until world(), and in end(), at least 10 s: processes
  /// do not start and leave at the same moment.
  void set_deadline(double seconds);
  /// The texts of all ranks, by rank, on all ranks. Collective: for the time before a world, and
  /// after its end. Timeout, or PeerLost when a process of this host is gone, naming the rank that
  /// did not come, and `purpose` as the operation; abandon() then, and the same failure from every
  /// later call.
  std::vector<std::string> exchange(const std::string& text,
                                    const std::string& purpose = "prepare the run");

  /// After a failure: MPI is left as it is, because ranks that are lost would never let it end.
  void abandon();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Description of the MPI library.
std::string mpi_version();

}  // namespace strait::comm
