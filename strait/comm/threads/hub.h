// What the ranks of one thread world share: the cluster, the options, the alarm and who must hear
// it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "strait/base/wait_clock.h"
#include "strait/collective/schedule.h"
#include "strait/comm/failure.h"
#include "strait/comm/last_step.h"
#include "strait/comm/signal.h"
#include "strait/topology/cluster.h"

namespace strait::tensor {
class Device;
}

namespace strait::comm {

/// Faults for tests. Counters are per rank, over all its communicators, in order of execution.
struct ThreadFaults {
  uint64_t seed = 0;
  double max_delay_seconds =
      0.0;                 // uniform delay before every operation, from (seed, rank, counter)
  int64_t lost_rank = -1;  // from its operation `lost_at` on this rank falls silent: its own
  int64_t lost_at = 0;     // operations throw PeerLost, its peers find out by their deadlines
  int64_t lost_step = -1;  // >= 0: from the one labelled so in this step on, instead of lost_at
  std::string lost_operation;
  /// How often a chunk is copied, asked for each on the thread that copies it; null: once.
  std::function<int64_t()> repeats;
};

struct ThreadWorldOptions {
  /// Where an operation has this form; without it, what collective::choose takes.
  std::optional<collective::Algorithm> algorithm;
  double spin_seconds = -1.0;  // how long a wait spins before it blocks; < 0: by ranks and cores
  ThreadFaults faults;
  /// Where buffers may be besides plain memory: a device that all ranks share. Outlives the worlds.
  tensor::Device* device = nullptr;
};

/// Thread-safe.
struct Hub {
  Hub(const Cluster& the_cluster, const ThreadWorldOptions& the_options, double spin)
      : cluster(the_cluster),
        options(the_options),
        spin_seconds(spin),
        own_rows(std::make_unique<WaitRow[]>(the_cluster.ranks)) {
    for (int64_t rank = 0; rank < cluster.ranks; ++rank) rows.push_back(&own_rows[rank]);
  }

  std::shared_ptr<Signal> make_signal(double spin) {
    auto signal = std::make_shared<Signal>(spin);
    const std::lock_guard<std::mutex> lock(mutex);
    signals.push_back(signal);
    return signal;
  }

  /// Sets the alarm off and wakes everybody.
  void ring(int64_t rank, const std::string& reason, const ErrorPlace& place, Cause cause) {
    if (alarm.ring(rank, reason, place, cause))
      for (int64_t other = 0; other < cluster.ranks; ++other) own_rows[other].freeze();
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& signal : signals) signal->notify();
  }

  const Cluster cluster;
  const ThreadWorldOptions options;
  const double spin_seconds;
  const std::unique_ptr<WaitRow[]> own_rows;  // by rank
  WaitRows rows;
  Alarm alarm;
  WaitClock clock;
  LastStep last_step;
  std::mutex mutex;
  std::vector<std::shared_ptr<Signal>> signals;
};

}  // namespace strait::comm
