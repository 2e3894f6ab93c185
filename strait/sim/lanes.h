// The virtual links: transfers in flight, one at a time per lane, lanes of a level sharing its bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace strait::sim {

/// One transfer of the replayed rank.
struct Flight {
  int64_t level = 0;
  double latency_seconds = 0;  // passes at its own pace
  double work_seconds = 0;     // time on an otherwise idle level; shrinks at the lane's share
  std::vector<int64_t> after;  // flights that must land first
  double started = -1, landed = -1;
};

/// Processor sharing: k lanes at work on a level each run at 1/k of its speed. Flights are numbered in the
/// order of issue.
class Lanes {
 public:
  /// `processor_share`, by level: what a busy level takes from computing; empty = nothing.
  explicit Lanes(int64_t num_streams, std::vector<double> processor_share = {})
      : queues_(static_cast<size_t>(num_streams)), processor_share_(std::move(processor_share)) {}
  double now() const { return now_; }
  const Flight& flight(int64_t number) const { return flights_[number]; }
  /// Flights issued so far: the number of the next one.
  int64_t issued() const { return static_cast<int64_t>(flights_.size()); }
  int64_t issue(int stream, Flight flight);
  /// Advances until `seconds` of work have been computed, at the pace that busy levels leave.
  void compute(double seconds);
  /// Advances until flight `number` has landed.
  void advance_until(int64_t number);

 private:
  /// Flights at work now: heads of lanes whose predecessors have landed.
  void collect_active();
  /// Progresses until `time` or the first landing, whichever comes first.
  void progress(double time);

  /// What the flights at work leave of a processor: 1 minus the shares of their levels, at least 0.05.
  double computing_pace();

  double now_ = 0;
  std::vector<Flight> flights_;
  std::vector<std::deque<int64_t>> queues_;
  std::vector<int64_t> active_;
  std::vector<double> processor_share_;
};

}  // namespace strait::sim
