#include "strait/sim/lanes.h"

#include <algorithm>
#include <limits>

#include "strait/base/errors.h"

namespace strait::sim {
namespace {

constexpr double kLeastPace = 0.05;  // transfers never starve computing

}  // namespace

int64_t Lanes::issue(int stream, Flight flight) {
  flights_.push_back(std::move(flight));
  const int64_t number = static_cast<int64_t>(flights_.size()) - 1;
  queues_[stream].push_back(number);
  return number;
}

void Lanes::collect_active() {
  active_.clear();
  for (const auto& queue : queues_) {
    if (queue.empty()) continue;
    Flight& head = flights_[queue.front()];
    const bool ready = std::all_of(head.after.begin(), head.after.end(),
                                   [&](int64_t number) { return flights_[number].landed >= 0; });
    if (!ready) continue;
    if (head.started < 0) head.started = now_;
    active_.push_back(queue.front());
  }
}

void Lanes::progress(double time) {
  collect_active();
  const auto sharing = [&](int64_t level) {
    return static_cast<double>(std::count_if(active_.begin(), active_.end(), [&](int64_t number) {
      return flights_[number].level == level && flights_[number].latency_seconds <= 0;
    }));
  };
  std::vector<double> speed;
  double span = time - now_;
  for (const int64_t number : active_) {
    const Flight& flight = flights_[number];
    const bool in_latency = flight.latency_seconds > 0;
    speed.push_back(in_latency ? 1.0 : 1.0 / sharing(flight.level));
    span = std::min(span, in_latency ? flight.latency_seconds : flight.work_seconds / speed.back());
  }
  now_ += span;
  for (size_t i = 0; i < active_.size(); ++i) {
    Flight& flight = flights_[active_[i]];
    double& left = flight.latency_seconds > 0 ? flight.latency_seconds : flight.work_seconds;
    left -= span * speed[i];
    if (left < 1e-15) left = 0;
    if (flight.latency_seconds > 0 || flight.work_seconds > 0) continue;
    flight.landed = now_;
    for (auto& queue : queues_)
      if (!queue.empty() && queue.front() == active_[i]) queue.pop_front();
  }
}

double Lanes::computing_pace() {
  double left = 1.0;
  for (size_t level = 0; level < processor_share_.size(); ++level)
    if (std::any_of(active_.begin(), active_.end(), [&](int64_t number) {
          return flights_[number].level == static_cast<int64_t>(level) &&
                 flights_[number].latency_seconds <= 0;
        }))
      left -= processor_share_[level];
  return std::max(left, kLeastPace);
}

void Lanes::compute(double seconds) {
  const auto landed = [&](int64_t number) { return flights_[number].landed >= 0; };
  while (seconds > 0) {
    collect_active();
    const double pace = computing_pace(), end = now_ + seconds / pace;
    if (active_.empty() || now_ == end) {
      now_ = end;
      return;
    }
    const double before = now_;
    progress(end);  // to the end, or to where the pace may change
    if (now_ >= end) return;
    if (now_ == before && std::none_of(active_.begin(), active_.end(), landed)) {
      now_ = end;  // the rest is below the clock's resolution
      return;
    }
    seconds -= (now_ - before) * pace;
  }
}

void Lanes::advance_until(int64_t number) {
  while (flights_[number].landed < 0) {
    collect_active();
    ensure(!active_.empty(), "simulation: a transfer waits for one that never starts");
    progress(std::numeric_limits<double>::infinity());
  }
}

}  // namespace strait::sim
