#include "strait/trace/verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace strait::trace {
namespace {

using Turn = LaneStanding::Turn;

struct Finding {
  Fault fault = Fault::kBusy;
  int64_t rank = -1;
  OperationPlace place;
  double since = 0;
};

int severity(Fault fault) {
  switch (fault) {
    case Fault::kMissing:
      return 0;
    case Fault::kEnded:
      return 1;
    case Fault::kBusy:
    case Fault::kSilent:
      return 2;
    case Fault::kDisorder:
      return 3;
    case Fault::kTransfer:
      return 4;
  }
  return 5;
}

bool comes_first(const Finding& a, const Finding& b) {
  const auto key = [](const Finding& finding) {
    return std::make_tuple(severity(finding.fault), finding.place.step, finding.place.index,
                           finding.rank);
  };
  return key(a) < key(b);
}

/// "between operations", "between programs": what it owes says more.
bool is_between(const OperationPlace& place) { return place.operation.starts_with("between "); }

class Search {
 public:
  Search(const std::vector<Standing>& ranks, double now) : ranks_(ranks), now_(now) {}

  void follow(const Wait& wait) {
    if (wait.peer >= 0)
      follow_peer(wait.rank, wait.communicator, wait.peer, wait.place);
    else
      follow_lane(wait.rank, wait.communicator);
  }
  const std::vector<Finding>& findings() const { return findings_; }
  const std::set<int64_t>& waiting() const { return waiting_; }

 private:
  struct Step {
    int64_t rank = 0;
    uint64_t communicator = 0;  // 0: it waits for a peer to take what it sent
    OperationPlace place;
    double since = 0;
  };

  const LaneStanding* lane(int64_t rank, uint64_t communicator) const;
  std::vector<int64_t> late_members(int64_t rank, const LaneStanding& lane) const;
  void follow_lane(int64_t rank, uint64_t communicator);
  void follow_turn(int64_t rank, const LaneStanding& lane);
  void follow_peer(int64_t rank, uint64_t communicator, int64_t peer, const OperationPlace& place);
  void follow_rank(int64_t rank, const LaneStanding& wanted);
  void find_cycle(int64_t rank, uint64_t communicator);
  double newest_beat(const std::vector<int64_t>& members) const;
  bool is_quiet(int64_t member, double newest, double since) const;
  bool waits_for_its_turn(int64_t rank) const;
  void all_joined(int64_t rank, const LaneStanding& lane);
  const LaneStanding* end_of_holds(int64_t rank, const LaneStanding* at) const;
  void find_missing(int64_t rank, const LaneStanding& missed);
  void find(Fault fault, int64_t rank, const OperationPlace& place, double since) {
    findings_.push_back({fault, rank, place, since});
  }

  const std::vector<Standing>& ranks_;
  const double now_;
  std::vector<Step> path_;
  std::set<std::pair<int64_t, uint64_t>> visited_;
  std::set<int64_t> waiting_;
  std::vector<Finding> findings_;
};

const LaneStanding* Search::lane(int64_t rank, uint64_t communicator) const {
  for (const LaneStanding& lane : ranks_[rank].lanes)
    if (lane.communicator == communicator) return &lane;
  return nullptr;
}

/// The operation that `at` waits for on this rank's own communicators; `at` itself when none of
/// them is at its turn: it has ended, and the rank did not go on.
const LaneStanding* Search::end_of_holds(int64_t rank, const LaneStanding* at) const {
  for (size_t turn = 0; turn < ranks_[rank].lanes.size() && at->turn == Turn::kHeld; ++turn) {
    const LaneStanding* next = lane(rank, at->held_by);
    if (next == nullptr || next->turn == Turn::kIdle) break;
    at = next;
  }
  return at;
}

/// Named with the last that is known of it: `missed` when that was at its turn, or what its program
/// was in; otherwise with `missed`.
void Search::find_missing(int64_t rank, const LaneStanding& missed) {
  const Standing& last = ranks_[rank];
  const LaneStanding* at = lane(rank, missed.communicator);
  const bool issued = at != nullptr && missed.peer < 0 && at->issued > missed.number;
  if (!issued || at->turn == Turn::kIdle) at = lane(rank, last.communicator);
  if (at != nullptr && at->turn != Turn::kIdle)
    return find(Fault::kMissing, rank, end_of_holds(rank, at)->place, 0);
  const bool told = !last.place.operation.empty() && !is_between(last.place);
  find(Fault::kMissing, rank, told ? last.place : missed.place, 0);
}

std::vector<int64_t> Search::late_members(int64_t rank, const LaneStanding& own) const {
  if (own.peer >= 0) return {own.peer};
  std::vector<int64_t> late;
  for (const int64_t member : own.members) {
    if (member == rank || member < 0 || member >= static_cast<int64_t>(ranks_.size())) continue;
    const LaneStanding* other = lane(member, own.communicator);
    const bool joined =
        other != nullptr && (other->number > own.number ||
                             (other->number == own.number && other->turn == Turn::kJoined));
    if (!joined) late.push_back(member);
  }
  return late;
}

void Search::follow_lane(int64_t rank, uint64_t communicator) {
  const LaneStanding* at = lane(rank, communicator);
  if (at == nullptr) return;
  if (!visited_.insert({rank, communicator}).second) return find_cycle(rank, communicator);
  path_.push_back({rank, communicator, at->place, at->since});
  follow_turn(rank, *at);
  path_.pop_back();
}

void Search::follow_turn(int64_t rank, const LaneStanding& at) {
  switch (at.turn) {
    case Turn::kIdle:
      return;
    case Turn::kCalled:
      return find(Fault::kSilent, rank, at.place, at.since);
    case Turn::kHeld: {
      const LaneStanding* next = lane(rank, at.held_by);
      if (next == nullptr || next->turn == Turn::kIdle)  // that has ended
        return find(Fault::kSilent, rank, at.place, at.since);
      waiting_.insert(rank);
      return follow_lane(rank, at.held_by);
    }
    case Turn::kJoined:
      waiting_.insert(rank);
      const std::vector<int64_t> late = late_members(rank, at);
      for (const int64_t member : late) follow_rank(member, at);
      if (late.empty()) all_joined(rank, at);
  }
}

/// `rank` waits for `peer` to take what it sent.
void Search::follow_peer(int64_t rank, uint64_t communicator, int64_t peer,
                         const OperationPlace& place) {
  if (!visited_.insert({rank, 0}).second) return find_cycle(rank, 0);
  waiting_.insert(rank);
  LaneStanding sent;
  sent.communicator = communicator;
  sent.peer = peer;
  sent.place = place;
  path_.push_back({rank, 0, place, ranks_[rank].since});
  follow_rank(peer, sent);
  path_.pop_back();
}

/// `rank` has not joined `wanted`.
void Search::follow_rank(int64_t rank, const LaneStanding& wanted) {
  if (rank >= static_cast<int64_t>(ranks_.size()))
    return find(Fault::kMissing, rank, wanted.place, 0);
  const Standing& standing = ranks_[rank];
  if (standing.kind == Standing::Kind::kMissing) return find_missing(rank, wanted);
  const LaneStanding* own = lane(rank, wanted.communicator);
  const bool queued = own != nullptr && wanted.peer < 0 && own->issued > wanted.number;
  if (queued && own->turn != Turn::kIdle) return follow_lane(rank, wanted.communicator);
  switch (standing.kind) {
    case Standing::Kind::kEnded:
      return find(Fault::kEnded, rank, wanted.place, standing.since);
    case Standing::Kind::kBusy:
      if (is_between(standing.place))
        return find(Fault::kSilent, rank, wanted.place, standing.since);
      return find(Fault::kBusy, rank, standing.place, standing.since);
    case Standing::Kind::kWaiting:
      if (standing.peer >= 0 && !waits_for_its_turn(rank))
        return follow_peer(rank, standing.communicator, standing.peer, standing.place);
      if (const LaneStanding* next = lane(rank, standing.communicator);
          next != nullptr && next->turn != Turn::kIdle)
        return follow_lane(rank, standing.communicator);
      break;
    default:
      break;
  }
  find(Fault::kSilent, rank, wanted.place, standing.since);
}

/// Whether the rank's program waits for a message to be taken that has not been sent: it is at its
/// turn, or another operation of the rank holds it up.
bool Search::waits_for_its_turn(int64_t rank) const {
  const Standing& standing = ranks_[rank];
  const LaneStanding* at = lane(rank, standing.communicator);
  return at != nullptr && (at->turn == Turn::kCalled || at->turn == Turn::kHeld) &&
         at->place.operation == standing.place.operation && at->place.step == standing.place.step;
}

/// Of ranks that are all in an operation: standings may be older than now.
double Search::newest_beat(const std::vector<int64_t>& members) const {
  double newest = 0;
  for (const int64_t member : members)
    if (member >= 0 && member < static_cast<int64_t>(ranks_.size()))
      newest = std::max(newest, ranks_[member].beat);
  return newest;
}

/// Its signs of life stopped in the wait that began at `since`.
bool Search::is_quiet(int64_t member, double newest, double since) const {
  const double beat = ranks_[member].beat;
  return beat > 0 && newest - beat > std::max(0.1, (newest - since) / 2);
}

/// The search is back at a wait: on the path it closes a cycle, elsewhere its findings are known.
/// One of those on it may have stopped in its wait, as the sender of a message that the other one
/// is in; else their orders differ.
void Search::find_cycle(int64_t rank, uint64_t communicator) {
  const auto begin = std::ranges::find_if(path_, [&](const Step& step) {
    return step.rank == rank && step.communicator == communicator;
  });
  if (begin == path_.end()) return;
  std::vector<int64_t> ranks;
  double since = begin->since;
  for (auto step = begin; step != path_.end(); ++step) {
    ranks.push_back(step->rank);
    since = std::min(since, step->since);
  }
  const double newest = newest_beat(ranks);
  std::optional<Finding> first;
  for (auto step = begin; step != path_.end(); ++step) {
    const bool quiet = is_quiet(step->rank, newest, since);
    const Finding here{quiet ? Fault::kSilent : Fault::kDisorder, step->rank, step->place,
                       quiet ? ranks_[step->rank].beat : step->since};
    if (!first || comes_first(here, *first)) first = here;
  }
  findings_.push_back(*first);
}

void Search::all_joined(int64_t rank, const LaneStanding& at) {
  int64_t quiet = -1;
  const double newest = newest_beat(at.members);
  bool left_behind = false;
  for (const int64_t member : at.members) {
    if (member < 0 || member >= static_cast<int64_t>(ranks_.size())) continue;
    if (ranks_[member].kind == Standing::Kind::kMissing) return find_missing(member, at);
    const LaneStanding* other = lane(member, at.communicator);
    if (other == nullptr) continue;
    left_behind |= other->number > at.number;
    if (other->number > at.number) continue;
    if (is_quiet(member, newest, at.since) &&
        (quiet < 0 || ranks_[member].beat < ranks_[quiet].beat))
      quiet = member;
    if (other->number != at.number || other->kind == at.kind) continue;
    const int64_t first = std::min(rank, member);
    const LaneStanding& named = first == rank ? at : *other;
    return find(Fault::kDisorder, first, named.place, named.since);
  }
  if (quiet < 0)
    return find(left_behind ? Fault::kSilent : Fault::kTransfer, rank, at.place, at.since);
  find(Fault::kSilent, quiet, lane(quiet, at.communicator)->place, ranks_[quiet].beat);
}

std::string place_text(const OperationPlace& place) {
  std::string text = place.operation.empty() ? "an operation" : '"' + place.operation + '"';
  if (place.step >= 0) text += fmt::format(" of step {}", place.step);
  return text;
}

std::string ranks_text(const std::vector<int64_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

std::string verdict_text(const Verdict& verdict) {
  const std::string where = place_text(verdict.place);
  const std::string duration =
      verdict.seconds > 0 ? fmt::format(", {:.3g} s by now", verdict.seconds) : "";
  const int64_t rank = verdict.rank;
  std::string text;
  switch (verdict.fault) {
    case Fault::kMissing:
      text = fmt::format("rank {} is gone and missed in {}", rank, where);
      break;
    case Fault::kEnded:
      text = fmt::format("rank {} has ended and does not come to {}", rank, where);
      break;
    case Fault::kBusy:
      text = fmt::format("rank {} fell behind first: it is in {}{}", rank, where, duration);
      break;
    case Fault::kSilent:
      text = fmt::format("rank {} fell behind first: it does not take part in {}{}", rank, where,
                         duration);
      break;
    case Fault::kDisorder:
      text = fmt::format("the ranks disagree about the order of collectives: rank {} is in {}",
                         rank, where);
      break;
    case Fault::kTransfer:
      text = fmt::format("all members are in {}, but its data does not arrive{}", where, duration);
      break;
  }
  if (verdict.waiting.empty()) return text;
  return text + fmt::format("; {} {}", ranks_text(verdict.waiting),
                            verdict.waiting.size() == 1 ? "waits" : "wait");
}

const char* fault_name(Fault fault) {
  switch (fault) {
    case Fault::kMissing:
      return "missing";
    case Fault::kEnded:
      return "ended";
    case Fault::kBusy:
      return "busy";
    case Fault::kSilent:
      return "silent";
    case Fault::kDisorder:
      return "disorder";
    case Fault::kTransfer:
      return "transfer";
  }
  return "?";
}

std::optional<Verdict> judge(const std::vector<Standing>& ranks, const std::vector<Wait>& starts,
                             double now) {
  Search search(ranks, now);
  for (const Wait& start : starts)
    if (start.rank >= 0 && start.rank < static_cast<int64_t>(ranks.size())) search.follow(start);
  const std::vector<Finding>& findings = search.findings();
  if (findings.empty()) return std::nullopt;
  const Finding& first = *std::min_element(findings.begin(), findings.end(), comes_first);
  Verdict verdict{first.fault, first.rank, first.place, 0, {}, ""};
  if (first.since > 0 && now > first.since) verdict.seconds = now - first.since;
  const bool among = first.fault == Fault::kDisorder || first.fault == Fault::kTransfer;
  for (const int64_t rank : search.waiting())
    if (among || rank != first.rank) verdict.waiting.push_back(rank);
  verdict.text = verdict_text(verdict);
  return verdict;
}

std::vector<Wait> all_waits(const std::vector<Standing>& ranks) {
  std::vector<Wait> waits;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const LaneStanding& lane : ranks[rank].lanes)
      if (lane.turn != Turn::kIdle && lane.members.size() > 1)
        waits.push_back({static_cast<int64_t>(rank), lane.communicator, -1, {}});
  return waits;
}

}  // namespace strait::trace
