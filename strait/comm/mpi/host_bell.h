// Carries an alarm to the other hosts, and theirs to this one.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "strait/comm/mpi/host_board.h"
#include "strait/comm/mpi/messages.h"

namespace strait::comm {

/// A thread that looks at the board and at MPI every few milliseconds. The rank that rang the alarm of its host
/// tells every rank of the other hosts, which ring theirs.
class HostBell {
 public:
  /// `communicator`: over all ranks, for this alone. `elsewhere`: ranks of other hosts. `told`: called after an
  /// alarm from another host was rung here.
  HostBell(Messages& messages, HostBoard& board, int64_t rank, std::vector<int64_t> elsewhere,
           std::function<void()> told);
  /// Waits a little for an alarm of this rank to leave.
  ~HostBell();
  HostBell(const HostBell&) = delete;
  HostBell& operator=(const HostBell&) = delete;

 private:
  void work();
  void tell();
  bool listen();

  Messages& messages_;
  HostBoard& board_;
  const int64_t rank_;
  const std::vector<int64_t> elsewhere_;
  const std::function<void()> told_;
  std::atomic<bool> stopping_{false};
  bool has_told_ = false;
  std::vector<Message> sends_;
  std::thread thread_;
};

}  // namespace strait::comm
