#include "strait/comm/wait_table.h"

#include <algorithm>
#include <map>

namespace strait::comm {

using trace::LaneStanding;
using trace::Standing;

Label::Label(std::string_view whole) {
  const size_t length = std::min(whole.size(), text.size());
  std::memcpy(text.data(), whole.data(), length);
  if (length < whole.size()) text[length - 2] = text[length - 1] = '.';
}

std::string_view Label::view() const {
  return {text.data(),
          static_cast<size_t>(std::find(text.begin(), text.end(), '\0') - text.begin())};
}

void WaitRow::busy(std::string_view operation, int64_t step, int64_t index, double now) {
  if (!writable(0)) return;
  Activity activity;
  activity.kind = 1;
  activity.step = step;
  activity.index = index;
  activity.since = now;
  activity.operation = Label(operation);
  activity_.store(activity);
}

void WaitRow::lose(std::string_view operation, int64_t step) {
  busy(operation, step, -1);
  lost_.store(1, std::memory_order_release);
}

void WaitRow::waits(uint64_t communicator) {
  if (!writable(0)) return;
  Activity activity;
  activity.kind = 2;
  activity.since = now_seconds();
  activity.communicator = communicator;
  activity_.store(activity);
}

void WaitRow::waits_for_peer(uint64_t communicator, int64_t peer, std::string_view operation,
                             int64_t step) {
  if (!writable(0)) return;
  Activity activity;
  activity.kind = 2;
  activity.step = step;
  activity.peer = peer;
  activity.since = now_seconds();
  activity.communicator = communicator;
  activity.operation = Label(operation);
  activity_.store(activity);
}

void WaitRow::ended() {
  if (!writable(0)) return;
  Activity activity;
  activity.kind = 3;
  activity.since = now_seconds();
  activity_.store(activity);
}

int WaitRow::open(uint64_t communicator, const std::vector<int64_t>& members) {
  for (int lane = 0; lane < kLanes; ++lane) {
    uint64_t taken = 0;
    if (lanes_[lane].communicator.compare_exchange_strong(taken, communicator)) {
      Members row;
      row.count = static_cast<int64_t>(members.size());
      row.first = members.empty() ? 0 : members.front();
      row.stride = row.count > 1 ? members[1] - members[0] : 1;
      for (size_t i = 1; i < members.size(); ++i)
        if (members[i] - members[i - 1] != row.stride) row.stride = 0;
      lanes_[lane].members.store(row);
      return lane;
    }
    if (taken == communicator) return lane;
  }
  return -1;
}

void WaitRow::issue(int lane) {
  if (writable(lane)) lanes_[lane].issued.fetch_add(1, std::memory_order_acq_rel);
}

void WaitRow::call(int lane, const Called& called) {
  if (!writable(lane)) return;
  Turn turn;
  turn.turn = static_cast<uint64_t>(LaneStanding::Turn::kCalled);
  turn.number = called.number;
  turn.step = called.step;
  turn.peer = called.peer;
  turn.since = now_seconds();
  std::memcpy(turn.kind.data(), called.kind.data(), std::min(called.kind.size(), turn.kind.size()));
  turn.operation = Label(called.operation);
  lanes_[lane].turn.store(turn);
}

void WaitRow::hold(int lane, uint64_t by) {
  if (!writable(lane)) return;
  Turn turn = lanes_[lane].turn.load();
  turn.turn =
      static_cast<uint64_t>(by == 0 ? LaneStanding::Turn::kCalled : LaneStanding::Turn::kHeld);
  turn.held_by = by;
  lanes_[lane].turn.store(turn);
}

void WaitRow::join(int lane) {
  if (!writable(lane)) return;
  Turn turn = lanes_[lane].turn.load();
  turn.turn = static_cast<uint64_t>(LaneStanding::Turn::kJoined);
  turn.held_by = 0;
  turn.since = now_seconds();
  lanes_[lane].turn.store(turn);
}

void WaitRow::end(int lane) {
  if (!endable(lane)) return;
  Turn turn = lanes_[lane].turn.load();
  if (turn.peer < 0) ++turn.number;
  turn.turn = static_cast<uint64_t>(LaneStanding::Turn::kIdle);
  lanes_[lane].turn.store(turn);
}

void WaitRow::keep(double now, double window_seconds) {
  double before = kept_at_.load(std::memory_order_acquire);
  constexpr int kAttempts = 100000;  // another one is at it, or died at it
  for (int i = 0; before < 0 && i < kAttempts; ++i)
    before = kept_at_.load(std::memory_order_acquire);
  if (before > 0 && now - before < window_seconds) return;
  if (!kept_at_.compare_exchange_strong(before, -now)) return keep(now, window_seconds);
  kept_activity_.store(activity_.load());
  kept_beat_.store(beat_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  kept_idle_since_.store(idle_since_.load(std::memory_order_relaxed), std::memory_order_relaxed);
  for (Lane& lane : lanes_) {
    if (lane.communicator.load(std::memory_order_acquire) == 0) continue;
    lane.kept_issued.store(lane.issued.load(std::memory_order_acquire), std::memory_order_release);
    lane.kept_turn.store(lane.turn.load());
  }
  kept_at_.store(now, std::memory_order_release);
}

LaneStanding WaitRow::lane_standing(const Lane& lane, bool kept) {
  LaneStanding standing;
  standing.communicator = lane.communicator.load(std::memory_order_acquire);
  const Members members = lane.members.load();
  for (int64_t i = 0; members.stride != 0 && i < members.count; ++i)
    standing.members.push_back(members.first + i * members.stride);
  const Turn turn = (kept ? lane.kept_turn : lane.turn).load();
  standing.issued = (kept ? lane.kept_issued : lane.issued).load(std::memory_order_acquire);
  standing.number = turn.number;
  standing.turn = static_cast<LaneStanding::Turn>(turn.turn);
  standing.held_by = turn.held_by;
  standing.peer = turn.peer;
  standing.kind = std::string(turn.kind.data(), strnlen(turn.kind.data(), turn.kind.size()));
  standing.place = {std::string(turn.operation.view()), turn.step, -1};
  standing.since = turn.since;
  return standing;
}

Standing WaitRow::standing() const { return make_standing(false); }

Standing WaitRow::kept_standing() const {
  return make_standing(kept_at_.load(std::memory_order_acquire) != 0);
}

Standing WaitRow::make_standing(bool kept) const {
  constexpr Standing::Kind kKinds[] = {Standing::Kind::kAbsent, Standing::Kind::kBusy,
                                       Standing::Kind::kWaiting, Standing::Kind::kEnded};
  const Activity activity = (kept ? kept_activity_ : activity_).load();
  Standing standing;
  standing.kind = kKinds[std::min<uint64_t>(activity.kind, 3)];
  standing.place = {std::string(activity.operation.view()), activity.step, activity.index};
  standing.since = activity.since;
  const double idle = (kept ? kept_idle_since_ : idle_since_).load(std::memory_order_acquire);
  if (activity.kind == 1 && idle > activity.since) {
    standing.place.operation = "between operations";
    standing.since = idle;
  }
  standing.communicator = activity.communicator;
  standing.peer = activity.kind == 2 ? activity.peer : -1;
  standing.beat = (kept ? kept_beat_ : beat_).load(std::memory_order_relaxed);
  for (const Lane& lane : lanes_)
    if (lane.communicator.load(std::memory_order_acquire) != 0)
      standing.lanes.push_back(lane_standing(lane, kept));
  if (gone_.load(std::memory_order_acquire) != 0) standing.kind = Standing::Kind::kMissing;
  return standing;
}

int64_t most_steps_begun(const WaitRows& rows) {
  int64_t most = 0;
  for (WaitRow* row : rows) most = std::max(most, row->steps_begun().load());
  return most;
}

std::vector<Standing> standings(const WaitRows& rows, bool kept) {
  std::vector<Standing> ranks(rows.size());
  for (size_t rank = 0; rank < rows.size(); ++rank) {
    ranks[rank].kind = Standing::Kind::kAbsent;
    if (rows[rank] == nullptr) continue;
    ranks[rank] = kept ? rows[rank]->kept_standing() : rows[rank]->standing();
  }
  std::map<uint64_t, std::vector<int64_t>> shown;  // irregular groups, by communicator
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    for (const LaneStanding& lane : ranks[rank].lanes)
      if (lane.members.empty()) shown[lane.communicator].push_back(static_cast<int64_t>(rank));
  for (Standing& standing : ranks)
    for (LaneStanding& lane : standing.lanes)
      if (lane.members.empty()) lane.members = shown[lane.communicator];
  return ranks;
}

std::vector<Standing> evidence(const WaitRows& rows, double deadline_seconds) {
  const double now = now_seconds();
  // Longer ago than half a deadline: then this wait may not have begun at that time.
  for (WaitRow* row : rows)
    if (row != nullptr) row->keep(now, std::min(1.0, deadline_seconds / 2));
  return standings(rows, true);
}

uint64_t communicator_number(const std::vector<int64_t>& members, int64_t lane) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  const auto mix = [&](int64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash ^= (static_cast<uint64_t>(value) >> (8 * byte)) & 0xff;
      hash *= 1099511628211ull;
    }
  };
  for (const int64_t member : members) mix(member);
  mix(-1 - lane);
  return hash == 0 ? 1 : hash;
}

}  // namespace strait::comm
