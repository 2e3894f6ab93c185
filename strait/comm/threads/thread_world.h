// Ranks as threads of one process: worlds that share memory, with one worker thread per
// communicator and member. The schedules of strait/collective are executed by pulling.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "strait/comm/communicator.h"
#include "strait/comm/failure.h"
#include "strait/comm/threads/hub.h"
#include "strait/topology/cluster.h"

namespace strait::comm {

/// All ranks of one process. Worlds and communicators live as long as this; tickets may outlive it.
/// On destruction pending operations end with PeerLost and all worker threads are joined.
///
/// Semantics beyond communicator.h:
///   * A communicator (members, lane) is thread-safe on its member's side; lanes run concurrently.
///   * The deadline of an operation counts from its turn: when those before it on the communicator
///   have ended.
///     The wait for `after` has the same deadline. After a failure the destination is undefined,
///     all members of the operation fail (with the same cause, named), and no member touches
///     another's buffers any more.
///   * Collectives that disagree in operation, dtype, counts or root throw UserError naming both.
///   * A send is done when its receiver has copied; it does not hold up later operations of the
///   sender.
///     The k-th receive from a member meets its k-th send on that communicator.
///   * The ledger counts bytes where they are pulled, for the member they are pulled from; copies
///   inside a
///     member count nothing. Send and receive appear as "send" of the sender.
///   * All-reduce takes one count per member (parts) or the whole count alone (split evenly).
///   * In a world of one an operation is at most a copy, made inside start().
class ThreadWorlds {
 public:
  ThreadWorlds(int64_t size, const Cluster& cluster, const ThreadWorldOptions& options);
  ~ThreadWorlds();
  ThreadWorlds(const ThreadWorlds&) = delete;
  ThreadWorlds& operator=(const ThreadWorlds&) = delete;

  int64_t size() const { return static_cast<int64_t>(worlds_.size()); }
  /// The door of one rank; use it from one thread at a time.
  World& world(int64_t rank) const;

 private:
  class Shared;
  class ThreadWorld;
  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<ThreadWorld>> worlds_;
};

/// Throws UserError when `size` is below 1 or differs from cluster.ranks.
std::unique_ptr<ThreadWorlds> make_thread_worlds(int64_t size, const Cluster& cluster,
                                                 const ThreadWorldOptions& options = {});

/// Calls body(world) on one thread per rank and joins them. When a rank throws, the others are told
/// by abort(); thrown again here is the first exception that is no PeerLost, else the first
/// PeerLost.
void run_ranks(ThreadWorlds& worlds, const std::function<void(World&)>& body);

/// How run_ranks watches over ranks that may never come back. A thread cannot be ended from
/// outside: when one hangs in a device or a disk, only the end of the process helps.
struct RankWatch {
  double grace_seconds = 3;  // after the first failure, for the other ranks to end
  /// Called every 50 ms on the calling thread; a failure that it returns is that of `place.rank`.
  std::function<std::optional<Failure>()> overdue;
  /// Ranks that did not end in time, and what the run failed with. Called once, on the calling
  /// thread; run_ranks goes on waiting when it returns.
  std::function<void(const std::exception_ptr& cause, const std::vector<int64_t>& ranks)> stuck;
};
void run_ranks(ThreadWorlds& worlds, const std::function<void(World&)>& body,
               const RankWatch& watch);

}  // namespace strait::comm
