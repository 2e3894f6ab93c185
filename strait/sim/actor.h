// One rank that is replayed: it pulls its program's operations and meets the others at transfers.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "strait/program/colouring.h"
#include "strait/program/lifetime.h"
#include "strait/sim/cursor.h"
#include "strait/sim/lanes.h"
#include "strait/sim/simulate.h"

namespace strait::sim {

/// What all actors share: who meets where, on which links.
struct Scene {
  Scene(std::span<const program::Program> classes, const Cluster& on);

  std::span<const program::Program> classes;
  const Cluster& cluster;
  program::Exchange exchange;
  program::Colouring colouring;
  program::Meetings meetings;
  Lanes lanes;
  std::vector<int64_t>
      flights;  // [execution * meetings + meeting], -1 before the first side arrives
};

class Actor {
 public:
  /// Replays the rank of `colour`, `executions` times in a row; the last one counts. `recorder`:
  /// null or what takes its spans.
  Actor(Scene& scene, int64_t colour, int executions, trace::Recorder* recorder);

  /// Goes on as far as no time passes.
  void resume();
  bool ended() const { return execution_ == executions_; }
  /// When the execution that counts began and ended.
  double began_at() const { return began_; }
  double ended_at() const { return ended_; }
  int64_t events() const { return events_; }
  const Representative& result() const { return result_; }
  /// Adds the spans of its transfers, once all ranks have ended.
  void record_flights() const;

 private:
  void begin_execution();
  /// The next thing to do without letting time pass.
  void go_on();
  void wait();
  void count_wait();
  void next_op();
  template <class Flights>
  void add_ends(int64_t number, Flights& flights);
  void run_op();
  void end_compute();
  void start();
  Flight flight(int64_t sides);
  void finish_execution();
  bool records() const { return recorder_ != nullptr && execution_ + 1 == executions_; }
  template <class Price>
  double seconds_of(const program::Op& op, Price price) {
    const auto [found, fresh] = seconds_.try_emplace(&op, 0);
    if (fresh) found->second = price();
    return found->second;
  }

  Scene& scene_;
  int64_t colour_;
  int executions_, execution_ = 0;
  trace::Recorder* recorder_;
  const program::Program& program_;
  program::LifetimeTracker tracker_;
  Cursor cursor_;
  const program::Op* op_ = nullptr;              // the present op: waiting, or computing
  const program::StepPlan* plan_ = nullptr;      // its plan
  const program::FinishPlan* finish_ = nullptr;  // of an execution whose last waits are under way
  bool computing_ = false;
  std::deque<int64_t> waits_;  // flights still to wait for
  double wait_began_ = -1;     // -1: not waiting
  double starved_ = 0;         // counted so far
  double compute_began_ = 0, began_ = 0, ended_ = 0;
  int64_t events_ = 0;
  std::vector<int64_t> numbers_;             // flights of this execution, by number of the transfer
  std::vector<const program::Op*> issued_;   // and their ops
  std::vector<std::vector<int64_t>> sends_;  // [stream]: those that may not have landed
  std::map<int64_t, int64_t> carries_;       // slot -> flight of the execution before
  std::unordered_map<const program::Op*, double> seconds_;
  std::vector<std::pair<const program::Op*, int64_t>> flown_;  // while recording
  Representative result_;
};

}  // namespace strait::sim
