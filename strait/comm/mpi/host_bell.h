// Carries alarms between hosts, the question where their ranks stand, and what their last step is.
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "strait/comm/mpi/host_board.h"
#include "strait/comm/mpi/messages.h"

namespace strait::comm {

/// A thread that looks at the board and at MPI every few milliseconds. The rank that rang the alarm
/// of its host tells every rank of the other hosts, which ring theirs.
class HostBell {
 public:
  struct Actions {
    std::function<void()> told;  // after an alarm from another host was rung here
    /// What the ranks of this host stand at, for another one; of a wait with this deadline.
    std::function<std::string(double deadline_seconds)> stand;
  };
  /// `messages`: over all ranks, for this alone. `elsewhere`: ranks of other hosts.
  HostBell(Messages& messages, HostBoard& board, int64_t rank, std::vector<int64_t> elsewhere,
           Actions actions);
  /// Waits a little for an alarm of this rank to leave.
  ~HostBell();
  HostBell(const HostBell&) = delete;
  HostBell& operator=(const HostBell&) = delete;

  /// Asks every rank of the other hosts, and hands each answer to `take` until that returns false,
  /// at most for `seconds`. Thread-safe.
  void ask(double deadline_seconds, double seconds,
           const std::function<bool(const std::string& answer)>& take);

 private:
  struct Question {
    double deadline_seconds = 0;
    int64_t number = 0;
  };
  void work();
  void tell();
  bool listen();
  void answer();
  void hear();
  void tell_last_step();
  void hear_last_step();
  void send(std::string text, int64_t to, int tag);
  bool sending();

  Messages& messages_;
  HostBoard& board_;
  const int64_t rank_;
  const std::vector<int64_t> elsewhere_;
  const Actions actions_;
  std::atomic<bool> stopping_{false};
  bool has_told_ = false, has_told_last_step_ = false;
  std::map<int64_t, int64_t> steps_elsewhere_;  // the most begun on the host of each rank
  struct Sent {
    std::string text;
    Message message;
  };
  std::mutex mutex_;  // guards what follows
  std::condition_variable heard_;
  std::deque<Sent> sends_;
  std::deque<std::string> answers_;
  int64_t asked_ = 0;  // number of the latest question
  std::mutex asking_;  // one question at a time
  std::thread thread_;
};

}  // namespace strait::comm
