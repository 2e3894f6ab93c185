// Watches over a rank that is a process of its own and may never come back.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <optional>
#include <thread>

#include "strait/comm/communicator.h"
#include "strait/comm/failure.h"

namespace strait::train {

/// What comm::RankWatch is for threads. Looks every 50 ms, on a thread of its own, until it is
/// destroyed.
class ProcessWatch {
 public:
  struct Actions {
    /// A failure that this rank does not notice itself.
    std::function<std::optional<comm::Failure>()> overdue;
    /// The run failed `grace_seconds` ago and the rank is still there. Only the end of the process
    /// helps.
    std::function<void(const std::exception_ptr& cause)> stuck;
    double grace_seconds = 3;
  };
  /// `world` hears of what is overdue.
  ProcessWatch(comm::World& world, Actions actions);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

 private:
  void work();
  comm::Failure did_not_come_back() const;

  comm::World& world_;
  const Actions actions_;
  std::atomic<bool> stopping_{false};
  std::thread worker_;
};

}  // namespace strait::train
