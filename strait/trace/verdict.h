// Who holds up a run: follows "waits for" from rank to rank until one that waits for nobody. A pure
// function of what every rank stands at, at one moment; the runtime asks it when a deadline passes,
// `strait report` when it reads flight records.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace strait::trace {

/// An operation of a rank's program, as it is named to a user. `index` is its place in the program
/// order of its step; -1 = unknown, as is step.
struct OperationPlace {
  std::string operation;
  int64_t step = -1;
  int64_t index = -1;
};

/// How one rank stands on one communicator. Its operations run one after another, and collective
/// number n is the same operation on every member.
struct LaneStanding {
  enum class Turn : uint8_t {
    kIdle,    // no operation is at its turn
    kHeld,    // it waits for an operation of this rank on `held_by`
    kCalled,  // it could begin, but the rank has not joined it
    kJoined,  // the other members see this rank in it
  };
  uint64_t communicator = 0;     // the same number on every member, never 0
  std::vector<int64_t> members;  // ranks, ascending
  int64_t issued = 0;            // collectives that the rank has issued here so far
  int64_t number = 0;            // of the collective at its turn, or of the next one
  Turn turn = Turn::kIdle;
  uint64_t held_by = 0;
  int64_t peer = -1;  // the one rank that the operation waits for; -1: all members
  std::string kind;   // "all-gather"; members that differ in it disagree
  OperationPlace place;
  double since = 0;  // when its turn came, in now_seconds()
};

/// What one rank is doing at one moment.
struct Standing {
  enum class Kind : uint8_t {
    kMissing,  // no record, or the process is gone; `place` is then the last known, if any
    kAbsent,   // it exists and has told nothing yet
    kBusy,     // inside `place`, which waits for no other rank; "between ..." = in no operation
    kWaiting,  // for its operations on `communicator`
    kEnded,    // its program has ended
  };
  Kind kind = Kind::kMissing;
  OperationPlace place;
  double since = 0;
  uint64_t communicator = 0;
  int64_t peer = -1;  // kWaiting: for this rank to take what was sent, `place`; -1 = by the lane
  double beat = 0;    // when it last gave a sign of life in the background; 0 = it gives none
  std::vector<LaneStanding> lanes;
};

enum class Fault : uint8_t {
  kMissing,   // the rank left no record: killed, or its host is gone
  kEnded,     // its program ended while others expected it
  kBusy,      // it is inside an operation that waits for nobody
  kSilent,    // an operation of its own is at its turn, and it does not take part
  kDisorder,  // ranks wait for each other: their programs order the collectives differently
  kTransfer,  // all members are in the operation, and its data does not arrive
};
/// "missing", "ended", "busy", "silent", "disorder", "transfer".
const char* fault_name(Fault fault);

struct Verdict {
  Fault fault = Fault::kBusy;
  int64_t rank = -1;  // that fell behind first
  OperationPlace place;
  double seconds = 0;            // how long it has been there; 0 = unknown
  std::vector<int64_t> waiting;  // ranks that wait for it, directly or through others; ascending
  std::string text;              // one sentence for a person
};

/// The sentence for a verdict whose other members are filled in.
std::string verdict_text(const Verdict& verdict);

/// A wait to start from: of `rank` in the operation at its turn on `communicator`, or for `peer` to
/// take part in `place` when that is not negative.
struct Wait {
  int64_t rank = 0;
  uint64_t communicator = 0;
  int64_t peer = -1;
  OperationPlace place;
};

/// Standings by rank. A wait leads to the members that have not joined its operation; such a member
/// leads on to its own operation at its turn there when it has issued this one, otherwise to what
/// its program waits for; a rank that waits for nobody is a finding. Of several findings stands the
/// first by: missing, ended, busy or silent, disorder, transfer; then step, index, rank. Among
/// members that are all in one operation, the one is silent whose signs of life stopped for more
/// than half of the wait, or else that the others have already left behind in it. Nothing when
/// `starts` lead nowhere. Cost: O(lanes * members) of the ranks that are reached.
std::optional<Verdict> judge(const std::vector<Standing>& ranks, const std::vector<Wait>& starts,
                             double now);

/// Every wait of every rank: operations at their turn on communicators of more than one member.
std::vector<Wait> all_waits(const std::vector<Standing>& ranks);

}  // namespace strait::trace
