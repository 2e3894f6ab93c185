// The virtual clock: actors that compute or wait, and transfers in flight between them, one at a
// time per lane of an actor, lanes of a level sharing its bandwidth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace strait::sim {

/// One transfer. It is under way once all its sides have arrived, each at the head of its lane and
/// behind what it was told to follow; it lands on all sides at once. What is sent unasked waits for
/// nobody but its sender to be under way, and so passes while its receiver takes what came before;
/// it lands when that has taken it too. Those of a lane go one behind the other, their latencies at
/// once.
struct Flight {
  int64_t level = 0;
  double latency_seconds = 0;  // passes at its own pace
  double work_seconds = 0;     // time on an otherwise idle level; shrinks at the lane's share
  int64_t sides = 1;           // actors that take part
  double late_seconds = 0;     // until its end is seen, while an actor that takes part computes
  bool unasked = false;
  double started = -1, landed = -1;
};

/// Which way the bytes of a flight pass an actor. Links carry both directions at full speed.
/// What goes out as a message holds up nothing behind it on its lane, as in the backends.
enum class Way : uint8_t { kBoth, kOut, kIn };

/// One actor's part in a flight.
struct Side {
  int64_t actor = 0;
  int stream = 0;
  Way way = Way::kBoth;
};

/// Blocks of ranks that stand side by side, as far as actors stand in them.
struct Blocks {
  struct Ranks {
    int64_t actor = 0, count = 1;  // so many are like this one
  };
  std::vector<int64_t> of_actor;
  std::vector<std::vector<Ranks>> ranks;  // [block]
};

/// Machines with fewer cores than ranks; none: every actor has its own cores.
struct Machines : Blocks {
  double all = 1;          // ranks of a machine; they compute at pace 1 when all of them do
  double alone_speed = 1;  // the pace of one beside idle ones
};

/// Groups below a level, whose messages share their links into it, out and in; a message takes one
/// of them. None: they never wait for each other.
struct Uplinks : Blocks {
  int64_t links = 1;  // of a group
};

/// Processor sharing: k lanes of an actor at work on a level, in one direction, each run at 1/k of
/// its speed; a flight runs at the pace of its slowest side. Flights are numbered in the order of
/// open().
class Lanes {
 public:
  /// `processor_share`, by level: what a busy level takes from computing; empty = nothing.
  /// `machines`: who takes turns with whom. `uplinks`, by level: whose messages share links.
  Lanes(int64_t num_actors, int64_t num_streams, std::vector<double> processor_share = {},
        Machines machines = {}, std::vector<Uplinks> uplinks = {});
  double now() const { return now_; }
  const Flight& flight(int64_t number) const { return flights_[number].flight; }
  /// A flight that waits for its sides.
  int64_t open(const Flight& flight);
  /// A side arrives behind those on its lane, to start after the flights in `after`.
  void arrive(int64_t number, const Side& side, const std::vector<int64_t>& after = {});
  /// The idle actor computes for `seconds` at full pace; busy levels slow it down.
  void compute(int64_t actor, double seconds);
  /// The idle actor waits until flight `number` has landed.
  void await(int64_t actor, int64_t number);
  bool idle(int64_t actor) const {
    return actors_[actor].seconds <= 0 && actors_[actor].awaits < 0;
  }
  /// Waited by `actor` so far while none of its own flights was under way: the wait was for other
  /// ranks.
  double starved_seconds(int64_t actor) const { return actors_[actor].starved; }
  /// Lets time pass until a flight lands or an actor has computed. InternalError when nothing ever
  /// will. O(actors + flights under way).
  void advance();

 private:
  struct Actor {
    double seconds = 0;   // of computing left
    int64_t awaits = -1;  // flight
    double starved = 0;
    double end = 0;    // of computing at the present pace
    double pace = 1;   // of computing
    double taken = 0;  // of its processor time, by its transfers
    bool under_way = false;
  };
  struct Part {  // a side that has arrived
    Side side;
    int64_t blocked = 0;  // by those before it on its lane, by flights that it follows
  };
  struct Place {  // a part of a flight
    int64_t flight = 0;
    size_t part = 0;
  };
  struct Passage {
    Flight flight;
    std::vector<Part> parts;
    std::vector<Place> followers;  // to tell of the landing, as often as they follow it
    int64_t missing = 0;           // sides that have not arrived, or are blocked
    bool taken = true;             // by the receiver, if it is sent unasked
    bool arrived = false;          // likewise: all of it
    int64_t behind = -1;           // likewise: the one before it from the same lane
  };
  std::deque<Place>& queue(const Side& side) {
    return queues_[side.actor * streams_ + side.stream];
  }
  int64_t& busy(const Side& side, int64_t level, bool out);
  int64_t& messages(int64_t actor, int64_t level, bool out);
  double crowd(const Side& side, int64_t level, bool out);
  double speed(const Passage& passage);
  bool computes(const Passage& passage) const;
  /// For those before it.
  bool queues(const Passage& passage) const {
    return passage.behind >= 0 && !flights_[static_cast<size_t>(passage.behind)].arrived;
  }
  void unblock(const Place& place);
  void ready(const Place& place);
  void leave_lane(const Side& side);
  void land(int64_t number);
  void share_links();
  void set_paces();
  double taken_by_transfers(int64_t actor);
  /// Of those that compute, by machine.
  std::vector<double> paces_of_machines() const;
  void starve(double span);
  /// Moves what is under way by `span`; whether something arrived.
  bool move_flights(double span);
  void move_actors(double before, bool landed);

  double now_ = 0;
  int64_t streams_, levels_ = 0;
  std::vector<double> processor_share_;
  Machines machines_;
  std::vector<Uplinks> uplinks_;
  std::vector<Actor> actors_;
  std::vector<Passage> flights_;
  std::vector<std::deque<Place>> queues_;  // [actor * streams + stream]
  std::vector<int64_t> unasked_;           // likewise: the last that was sent so, or -1
  std::vector<int64_t> active_;            // flights under way
  std::vector<int64_t> busy_;              // [actor][level][way]: flights past their latency
  std::vector<int64_t> messages_;          // of them
};

}  // namespace strait::sim
