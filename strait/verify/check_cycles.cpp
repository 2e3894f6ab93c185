// Whether the ranks can wait for each other in a circle. Every transfer is taken to end only once
// all its ranks have started it, the strictest a backend may be; then legal programs are those
// whose waits, over all ranks, have no cycle. One rank of each colour is followed (colouring.h).
#include <fmt/format.h>

#include <algorithm>

#include "strait/program/colouring.h"
#include "strait/program/lifetime.h"
#include "strait/verify/findings.h"

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

/// The events of all colours and what each must wait for: meetings (a transfer with all its ranks)
/// and pauses.
class EventGraph {
 public:
  explicit EventGraph(Findings& findings)
      : findings_(findings),
        exchange_(findings.classes()),
        colouring_(exchange_),
        meetings_(exchange_, colouring_) {
    for (const Program& program : findings.classes()) waits_.push_back(find_waits(program));
  }

  void run() {
    events_.resize(meetings_.count());
    for (int64_t colour = 0; colour < colouring_.colours(); ++colour) add_edges(colour);
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

  void add_edges(int64_t colour) {
    const int64_t rank_class = exchange_.class_of(colouring_.rank(colour));
    const Waits& waits = waits_[rank_class];
    std::vector<int64_t> pauses;
    for (const Waits::Pause& pause : waits.pauses) {
      const int64_t event = new_event(rank_class, pause.instance);
      if (!pauses.empty()) edges_.push_back({pauses.back(), event});
      for (const int64_t number : pause.ended)
        edges_.push_back({meetings_.at(colour, number), event});
      pauses.push_back(event);
    }
    for (size_t number = 0; number < waits.starts.size(); ++number) {
      const Waits::Start& start = waits.starts[number];
      const int64_t meeting = meetings_.at(colour, static_cast<int64_t>(number));
      events_[meeting] = {rank_class, exchange_.transfers(rank_class)[number].instance};
      for (const int64_t earlier : start.after)
        edges_.push_back({meetings_.at(colour, earlier), meeting});
      if (start.pause >= 0) edges_.push_back({pauses[start.pause], meeting});
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
  Colouring colouring_;
  Meetings meetings_;
  std::vector<Waits> waits_;   // by class
  std::vector<Event> events_;  // meetings, then pauses
  std::vector<Edge> edges_;
};

}  // namespace

void check_cycles(Findings& findings) { EventGraph(findings).run(); }

}  // namespace strait::program
