// Whether the ranks can wait for each other in a circle. Every transfer is taken to end only once
// all its ranks have started it, the strictest a backend may be; then legal programs are those
// whose waits, over all ranks, have no cycle. Ranks that see the same surroundings behave alike, so
// one of each kind is followed: kinds are found by colouring ranks by class and refining by the
// colours of their groups.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "strait/program/exchange.h"
#include "strait/program/findings.h"
#include "strait/program/lifetime.h"

namespace strait::program {

namespace {

/// What one class waits for, in the order of issue. Both lists refer to communication ops by
/// number.
struct Waits {
  struct Start {
    std::vector<int64_t> after;  // transfers that must end first
    int64_t pause = -1;          // last pause before it
  };
  struct Pause {  // an inline op that waits
    std::vector<int64_t> ended;
    int64_t instance = 0;
  };
  std::vector<Start> starts;  // by communication op
  std::vector<Pause> pauses;
};

Waits find_waits(const Program& program) {
  Waits waits;
  LifetimeTracker tracker(program);
  int64_t instance = 0;
  for_each_instance(program, [&](const Op& op, const std::vector<int64_t>& loops) {
    const StepPlan& plan = tracker.next(op, loops);
    if (plan.communication >= 0) {
      Waits::Start start{plan.after, static_cast<int64_t>(waits.pauses.size()) - 1};
      if (plan.previous >= 0) start.after.push_back(plan.previous);
      waits.starts.push_back(std::move(start));
    } else if (!plan.wait_for.empty()) {
      waits.pauses.push_back({plan.wait_for, instance});
    }
    ++instance;
  });
  return waits;
}

/// Colours of ranks: ranks of one colour run the same program among equally coloured ranks.
class Colouring {
 public:
  Colouring(const Exchange& exchange, const std::vector<std::set<int>>& channels_by_class)
      : exchange_(exchange), channels_(channels_by_class) {
    for (int64_t rank = 0; rank < exchange.ranks(); ++rank)
      colour_.push_back(exchange.class_of(rank));
    size_t before = 0;
    while (refine() > before) before = representative_.size();
  }

  int64_t colours() const { return static_cast<int64_t>(representative_.size()); }
  int64_t colour(int64_t rank) const { return colour_[rank]; }
  int64_t rank(int64_t colour) const { return representative_[colour]; }

  /// Colours of the members of the group of `rank`: in order where messages are sent, else as a
  /// set.
  std::vector<int64_t> surroundings(int channel, int64_t rank) const {
    const Group& group = exchange_.channels()[channel].group;
    std::vector<int64_t> members;
    for (int64_t at = 0; at < group.size; ++at) members.push_back(colour_[group.member(rank, at)]);
    if (exchange_.has_messages(channel)) return members;
    std::sort(members.begin(), members.end());
    members.erase(std::unique(members.begin(), members.end()), members.end());
    return members;
  }

 private:
  size_t refine() {
    std::map<std::vector<int64_t>, int64_t> known;
    std::map<std::vector<int64_t>, int64_t> known_surroundings;
    std::map<std::pair<int, int64_t>, int64_t>
        by_group;  // (channel, base) -> number of its surroundings
    std::vector<int64_t> next;
    representative_.clear();
    for (int64_t rank = 0; rank < exchange_.ranks(); ++rank) {
      std::vector<int64_t> signature = {colour_[rank]};
      for (const int channel : channels_[exchange_.class_of(rank)]) {
        const Group& group = exchange_.channels()[channel].group;
        const auto [found, fresh] = by_group.try_emplace({channel, group.base(rank)}, 0);
        if (fresh) {
          const int64_t number = static_cast<int64_t>(known_surroundings.size());
          found->second =
              known_surroundings.emplace(surroundings(channel, rank), number).first->second;
        }
        signature.push_back(found->second);
        signature.push_back(exchange_.has_messages(channel) ? group.position(rank) : -1);
      }
      const auto [found, fresh] =
          known.emplace(std::move(signature), static_cast<int64_t>(known.size()));
      if (fresh) representative_.push_back(rank);
      next.push_back(found->second);
    }
    colour_ = std::move(next);
    return representative_.size();
  }

  const Exchange& exchange_;
  const std::vector<std::set<int>>& channels_;  // by class
  std::vector<int64_t> colour_;                 // by rank
  std::vector<int64_t> representative_;         // by colour
};

/// The events of all colours and what each must wait for: meetings (a transfer with all its ranks)
/// and pauses.
class EventGraph {
 public:
  explicit EventGraph(Findings& findings) : findings_(findings), exchange_(findings.classes()) {
    const size_t classes = findings.classes().size();
    channels_.resize(classes);
    for (size_t c = 0; c < classes; ++c) {
      const std::vector<Transfer>& transfers = exchange_.transfers(static_cast<int64_t>(c));
      for (const Transfer& transfer : transfers) channels_[c].insert(transfer.channel);
      waits_.push_back(find_waits(findings.classes()[c]));
    }
  }

  void run() {
    const Colouring colouring(exchange_, channels_);
    meetings_.resize(colouring.colours());
    for (int64_t colour = 0; colour < colouring.colours(); ++colour)
      place_meetings(colouring, colour);
    for (int64_t colour = 0; colour < colouring.colours(); ++colour) add_edges(colouring, colour);
    const std::vector<char> done = simulate();
    if (std::find(done.begin(), done.end(), 0) != done.end()) report(done);
  }

 private:
  struct Event {
    int64_t rank_class = 0;
    int64_t instance = 0;  // of the class
  };
  struct Edge {
    int64_t from = 0, to = 0;
  };

  int64_t new_event(int64_t rank_class, int64_t instance) {
    events_.push_back({rank_class, instance});
    return static_cast<int64_t>(events_.size()) - 1;
  }

  /// Gives every transfer of a colour the event in which it meets those of the other ranks.
  void place_meetings(const Colouring& colouring, int64_t colour) {
    const int64_t rank = colouring.rank(colour);
    const int64_t rank_class = exchange_.class_of(rank);
    meetings_[colour].assign(exchange_.transfers(rank_class).size(), -1);
    for (const int channel : channels_[rank_class]) {
      const std::vector<int64_t> surroundings = colouring.surroundings(channel, rank);
      const int64_t position = exchange_.channels()[channel].group.position(rank);
      join(colour, rank_class, exchange_.collectives(rank_class, channel), {channel, -1, -1},
           surroundings);
      for (const auto& [peer, numbers] : exchange_.sends(rank_class, channel)) {
        join(colour, rank_class, numbers, {channel, position, peer}, surroundings);
      }
      for (const auto& [peer, numbers] : exchange_.receives(rank_class, channel)) {
        join(colour, rank_class, numbers, {channel, peer, position}, surroundings);
      }
    }
  }

  void join(int64_t colour, int64_t rank_class, const std::vector<int64_t>& numbers,
            std::vector<int64_t> key, const std::vector<int64_t>& surroundings) {
    key.insert(key.end(), surroundings.begin(), surroundings.end());
    std::vector<int64_t>& events = known_[key];
    for (size_t k = 0; k < numbers.size(); ++k) {
      if (k >= events.size()) {
        events.push_back(
            new_event(rank_class, exchange_.transfers(rank_class)[numbers[k]].instance));
      }
      meetings_[colour][numbers[k]] = events[k];
    }
  }

  void add_edges(const Colouring& colouring, int64_t colour) {
    const int64_t rank_class = exchange_.class_of(colouring.rank(colour));
    const Waits& waits = waits_[rank_class];
    const std::vector<int64_t>& meetings = meetings_[colour];
    std::vector<int64_t> pauses;
    for (const Waits::Pause& pause : waits.pauses) {
      const int64_t event = new_event(rank_class, pause.instance);
      if (!pauses.empty()) edges_.push_back({pauses.back(), event});
      for (const int64_t number : pause.ended) edges_.push_back({meetings[number], event});
      pauses.push_back(event);
    }
    for (size_t number = 0; number < waits.starts.size(); ++number) {
      const Waits::Start& start = waits.starts[number];
      for (const int64_t earlier : start.after)
        edges_.push_back({meetings[earlier], meetings[number]});
      if (start.pause >= 0) edges_.push_back({pauses[start.pause], meetings[number]});
    }
  }

  /// Lets every event happen whose predecessors have; returns which happened.
  std::vector<char> simulate() const {
    const size_t count = events_.size();
    std::vector<int64_t> first(count + 1, 0), missing(count, 0), targets(edges_.size()), ready;
    for (const Edge& edge : edges_) {
      ++first[edge.from + 1];
      ++missing[edge.to];
    }
    for (size_t e = 0; e < count; ++e) first[e + 1] += first[e];
    std::vector<int64_t> at(first.begin(), first.end() - 1);
    for (const Edge& edge : edges_) targets[at[edge.from]++] = edge.to;
    for (size_t e = 0; e < count; ++e) {
      if (missing[e] == 0) ready.push_back(static_cast<int64_t>(e));
    }
    std::vector<char> done(count, 0);
    while (!ready.empty()) {
      const int64_t event = ready.back();
      ready.pop_back();
      done[event] = 1;
      for (int64_t k = first[event]; k < first[event + 1]; ++k) {
        if (--missing[targets[k]] == 0) ready.push_back(targets[k]);
      }
    }
    return done;
  }

  std::string text(int64_t event) const {
    const Event& e = events_[event];
    return fmt::format("rank class {} `{}`", e.rank_class,
                       instance_text(findings_.classes()[e.rank_class], e.instance));
  }

  /// Walks back along events that did not happen until one comes up again.
  void report(const std::vector<char>& done) {
    std::vector<int64_t> before(events_.size(), -1);
    for (const Edge& edge : edges_) {
      if (!done[edge.from] && !done[edge.to]) before[edge.to] = edge.from;
    }
    int64_t event = std::find(done.begin(), done.end(), 0) - done.begin();
    std::vector<char> passed(events_.size(), 0);
    for (; !passed[event]; event = before[event]) passed[event] = 1;
    std::string sentence = text(event), other;
    int64_t at = before[event];
    constexpr int kMostShown = 8;
    for (int shown = 1; at != event; at = before[at], ++shown) {
      if (other.empty()) other = text(at);
      if (shown < kMostShown) sentence += " waits for " + text(at);
      if (shown == kMostShown) sentence += " waits for ...";
    }
    sentence += " waits for the first of these";
    findings_.add("cycle", {events_[event].rank_class, find_op(events_[event])}, sentence, other);
  }

  const Op* find_op(const Event& event) const {
    const Op* result = nullptr;
    int64_t at = 0;
    for_each_instance(findings_.classes()[event.rank_class],
                      [&](const Op& op, const std::vector<int64_t>&) {
                        if (at++ == event.instance) result = &op;
                      });
    return result;
  }

  Findings& findings_;
  Exchange exchange_;
  std::vector<std::set<int>> channels_;                         // used, by class
  std::vector<Waits> waits_;                                    // by class
  std::vector<std::vector<int64_t>> meetings_;                  // [colour][transfer] -> event
  std::map<std::vector<int64_t>, std::vector<int64_t>> known_;  // who meets -> events in order
  std::vector<Event> events_;
  std::vector<Edge> edges_;
};

}  // namespace

void check_cycles(Findings& findings) { EventGraph(findings).run(); }

}  // namespace strait::program
