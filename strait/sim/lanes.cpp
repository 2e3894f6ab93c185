#include "strait/sim/lanes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "strait/base/errors.h"

namespace strait::sim {
namespace {

constexpr double kLeastPace = 0.05;  // transfers never starve computing
constexpr double kInstant = 1e-15;   // seconds; less is rounding
constexpr double kNever = std::numeric_limits<double>::infinity();

bool in_latency(const Flight& flight) { return flight.latency_seconds > 0; }

}  // namespace

Lanes::Lanes(int64_t num_actors, int64_t num_streams, std::vector<double> processor_share,
             Machines machines, std::vector<Uplinks> uplinks)
    : streams_(num_streams),
      levels_(static_cast<int64_t>(processor_share.size())),
      processor_share_(std::move(processor_share)),
      machines_(std::move(machines)),
      uplinks_(std::move(uplinks)),
      actors_(static_cast<size_t>(num_actors)),
      queues_(static_cast<size_t>(num_actors * num_streams)),
      unasked_(queues_.size(), -1) {}

int64_t Lanes::open(const Flight& flight) {
  levels_ = std::max(levels_, flight.level + 1);
  flights_.push_back({flight, {}, {}, flight.unasked ? 1 : flight.sides, !flight.unasked});
  return static_cast<int64_t>(flights_.size()) - 1;
}

void Lanes::arrive(int64_t number, const Side& side, const std::vector<int64_t>& after) {
  const Place place{number, flights_[number].parts.size()};
  Part part{side, queue(side).empty() ? 0 : 1};
  for (const int64_t earlier : after) {
    if (flights_[earlier].flight.landed >= 0) continue;
    flights_[earlier].followers.push_back(place);
    ++part.blocked;
  }
  flights_[number].parts.push_back(part);
  queue(side).push_back(place);
  if (part.blocked == 0) ready(place);
}

void Lanes::unblock(const Place& place) {
  if (--flights_[place.flight].parts[place.part].blocked == 0) ready(place);
}

/// Nothing on this side holds the flight up any more.
void Lanes::ready(const Place& place) {
  Passage& passage = flights_[place.flight];
  const Side side = passage.parts[place.part].side;
  if (passage.flight.unasked && side.way == Way::kIn) {
    passage.taken = true;
    if (passage.arrived) land(place.flight);
    return;
  }
  if (--passage.missing == 0) {
    passage.flight.started = now_;
    active_.push_back(place.flight);
    if (passage.flight.unasked)
      passage.behind = std::exchange(
          unasked_[static_cast<size_t>(side.actor * streams_ + side.stream)], place.flight);
  }
  if (side.way == Way::kOut) leave_lane(side);
}

void Lanes::leave_lane(const Side& side) {
  queue(side).pop_front();
  if (!queue(side).empty()) unblock(queue(side).front());
}

void Lanes::land(int64_t number) {
  const Passage& passage = flights_[number];
  flights_[number].flight.landed = now_;
  for (const Part& part : passage.parts)
    if (part.side.way != Way::kOut) leave_lane(part.side);
  for (const Place& follower : passage.followers) unblock(follower);
  for (Actor& actor : actors_)
    if (actor.awaits == number) actor.awaits = -1;
}

void Lanes::compute(int64_t actor, double seconds) { actors_[actor].seconds = seconds; }

void Lanes::await(int64_t actor, int64_t number) {
  if (flights_[number].flight.landed < 0) actors_[actor].awaits = number;
}

int64_t& Lanes::busy(const Side& side, int64_t level, bool out) {
  return busy_[(side.actor * levels_ + level) * 2 + (out ? 1 : 0)];
}

int64_t& Lanes::messages(int64_t actor, int64_t level, bool out) {
  return messages_[(actor * levels_ + level) * 2 + (out ? 1 : 0)];
}

void Lanes::share_links() {
  busy_.assign(actors_.size() * static_cast<size_t>(levels_) * 2, 0);
  messages_.assign(busy_.size(), 0);
  for (Actor& actor : actors_) actor.under_way = false;
  for (const int64_t number : active_) {
    const Passage& passage = flights_[number];
    for (const auto& [side, blocked] : passage.parts) {
      actors_[side.actor].under_way = true;
      if (in_latency(passage.flight) || queues(passage)) continue;
      if (side.way != Way::kIn) ++busy(side, passage.flight.level, true);
      if (side.way != Way::kOut) ++busy(side, passage.flight.level, false);
      if (side.way != Way::kBoth)
        ++messages(side.actor, passage.flight.level, side.way == Way::kOut);
    }
  }
}

/// Messages for each link of the side's group.
double Lanes::crowd(const Side& side, int64_t level, bool out) {
  if (static_cast<size_t>(level) >= uplinks_.size()) return 0;
  const Uplinks& uplinks = uplinks_[level];
  if (uplinks.of_actor.empty()) return 0;
  int64_t sum = 0;
  for (const auto& [actor, count] : uplinks.ranks[uplinks.of_actor[side.actor]])
    sum += count * messages(actor, level, out);
  return static_cast<double>(sum) / static_cast<double>(uplinks.links);
}

double Lanes::speed(const Passage& passage) {
  if (in_latency(passage.flight)) return 1.0;
  if (queues(passage)) return 0.0;
  const int64_t level = passage.flight.level;
  double sharing = 1;
  for (const auto& [side, blocked] : passage.parts) {
    if (side.way != Way::kIn)
      sharing = std::max(sharing, static_cast<double>(busy(side, level, true)));
    if (side.way != Way::kOut)
      sharing = std::max(sharing, static_cast<double>(busy(side, level, false)));
    if (side.way != Way::kBoth)
      sharing = std::max(sharing, crowd(side, level, side.way == Way::kOut));
  }
  return 1.0 / sharing;
}

/// Whether an actor that takes part does.
bool Lanes::computes(const Passage& passage) const {
  return std::any_of(passage.parts.begin(), passage.parts.end(),
                     [&](const Part& part) { return actors_[part.side.actor].seconds > 0; });
}

double Lanes::taken_by_transfers(int64_t actor) {
  double taken = 0;
  const Side side{actor};
  for (size_t l = 0; l < processor_share_.size(); ++l) {
    const int64_t level = static_cast<int64_t>(l);
    if (busy(side, level, true) + busy(side, level, false) > 0) taken += processor_share_[l];
  }
  return taken;
}

/// What the transfers of all leave of a machine, in equal parts to those that compute.
std::vector<double> Lanes::paces_of_machines() const {
  std::vector<double> paces;
  for (const std::vector<Machines::Ranks>& machine : machines_.ranks) {
    double left = machines_.all, computing = 0;
    for (const Machines::Ranks& ranks : machine) {
      const double count = static_cast<double>(ranks.count);
      left -= count * actors_[ranks.actor].taken;
      if (actors_[ranks.actor].seconds > 0) computing += count;
    }
    paces.push_back(computing > 0 ? std::min(machines_.alone_speed, left / computing) : 1);
  }
  return paces;
}

/// Transfers slow down computing to no less than 0.05 of its speed.
void Lanes::set_paces() {
  for (size_t a = 0; a < actors_.size(); ++a)
    actors_[a].taken = taken_by_transfers(static_cast<int64_t>(a));
  const std::vector<double> paces = paces_of_machines();
  for (size_t a = 0; a < actors_.size(); ++a) {
    Actor& actor = actors_[a];
    const double left = paces.empty() ? 1.0 - actor.taken : paces[machines_.of_actor[a]];
    actor.pace = std::max(left, kLeastPace);
    actor.end = actor.seconds > 0 ? now_ + actor.seconds / actor.pace : kNever;
  }
}

/// Actors that wait while nothing of theirs is under way wait for other ranks.
void Lanes::starve(double span) {
  for (Actor& actor : actors_)
    if (actor.awaits >= 0 && !actor.under_way) actor.starved += span;
}

bool Lanes::move_flights(double span) {
  std::vector<double> speeds;
  for (const int64_t number : active_) speeds.push_back(speed(flights_[number]));
  std::vector<int64_t> arrived;
  size_t kept = 0;
  for (size_t i = 0; i < speeds.size(); ++i) {
    const int64_t number = active_[i];
    Flight& flight = flights_[number].flight;
    double& left = in_latency(flight) ? flight.latency_seconds : flight.work_seconds;
    left -= span * speeds[i];
    if (left < kInstant) left = 0;
    const bool passed = flight.latency_seconds <= 0 && flight.work_seconds <= 0;
    if (passed && flight.late_seconds > 0 && computes(flights_[number]))
      flight.latency_seconds = std::exchange(flight.late_seconds, 0);
    if (flight.latency_seconds > 0 || flight.work_seconds > 0 || queues(flights_[number]))
      active_[kept++] = number;
    else
      arrived.push_back(number);
  }
  active_.resize(kept);
  for (const int64_t number : arrived) {
    flights_[number].arrived = true;
    if (flights_[number].taken) land(number);
  }
  return !arrived.empty();
}

void Lanes::move_actors(double before, bool landed) {
  const bool stuck = now_ == before && !landed;  // the rest is below the clock's resolution
  double first = kNever;
  for (const Actor& actor : actors_) first = std::min(first, actor.end);
  if (stuck && first < kNever) now_ = first;
  for (Actor& actor : actors_) {
    if (actor.seconds <= 0) continue;
    if (now_ >= actor.end)
      actor.seconds = 0;
    else
      actor.seconds -= (now_ - before) * actor.pace;
  }
}

void Lanes::advance() {
  share_links();
  set_paces();
  double first = kNever;
  for (const Actor& actor : actors_) first = std::min(first, actor.end);
  const double before = now_;
  bool landed = false;
  if (active_.empty()) {
    ensure(first < kNever, "simulation: a transfer waits for one that never starts");
    now_ = first;
    starve(now_ - before);
  } else {
    double span = first - now_;
    for (const int64_t number : active_) {
      const Flight& flight = flights_[number].flight;
      span = std::min(span, in_latency(flight) ? flight.latency_seconds
                                               : flight.work_seconds / speed(flights_[number]));
    }
    now_ += span;
    starve(span);
    landed = move_flights(span);
  }
  move_actors(before, landed);
}

}  // namespace strait::sim
