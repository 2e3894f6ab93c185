// Asynchronous operations among a group of ranks, each with a deadline. One communicator per
// (group, lane); operations on it start in the same order on every member, each after the one
// before it has ended; but a send holds up nothing, and only its own ticket tells that it was
// taken.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strait/base/clock.h"
#include "strait/base/dtype.h"
#include "strait/base/errors.h"
#include "strait/collective/schedule.h"
#include "strait/trace/flight.h"
#include "strait/trace/ledger.h"

namespace strait::comm {

class WaitRow;

using collective::Operation;       // kAllGather, kReduceScatter, ..., kBarrier
using collective::operation_name;  // "all-gather", ...

/// One operation, as seen by one member. Buffers stay untouched by the caller until the ticket is
/// done.
///
/// * all-gather: source has the own part, destination all parts in order (in place: around source).
/// * reduce-scatter: source has all parts, destination the own one (in place: inside source).
/// * all-reduce: source and destination have the whole vector (may be equal).
/// * all-to-all: source has parts by receiver (`counts`), destination parts by sender
///   (`receive_counts`).
/// * shift: source goes to the next position, or skips `peer`, destination has that of the one as
///   far before; counts = {elements}.
/// * broadcast: `peer` = root; source on the root, destination elsewhere (root: may be equal or
///   null).
/// * send, receive: `peer` = other position; counts = {elements}.
///
/// Sums run in member order 0..n-1 in the element type; `accumulate` adds the result to the
/// destination.
struct Call {
  Operation operation = Operation::kBarrier;
  Dtype dtype = Dtype::kFloat32;
  const void* source = nullptr;
  void* destination = nullptr;
  std::vector<int64_t> counts;          // elements of each part, any of them 0
  std::vector<int64_t> receive_counts;  // all-to-all only
  int64_t peer = 0;
  bool accumulate = false;
  double deadline_seconds = 120.0;
  std::string codec = "none";  // for the ledger: what the bytes are pieces of, and
  int64_t piece_bytes = 0;     // how long each piece is in the buffers; 0: no pieces
  int64_t step = -1;           // for messages and the ledger: optimizer step
  bool outlives = false;       // for the ledger: its step may end before it does
  std::string label;           // for messages: the op as the program prints it
  trace::FlightMark flight;    // told when the operation's turn comes and when it has ended
};

/// Adds what a member sent in `call` over one level to `ledger`; the transport counted `bytes`. The
/// codec's name tells how much of every piece is scales.
void add_to_ledger(const Call& call, int64_t level, int64_t bytes, Ledger& ledger);

/// Outcome of an operation. Copies share it.
class Ticket {
 public:
  struct State {
    virtual ~State() = default;
    virtual bool done() const = 0;
    virtual void wait() = 0;
    /// When the operation ran, in now_seconds(); zeros until it is done.
    virtual std::pair<double, double> interval() const { return {0, 0}; }
  };
  Ticket() = default;
  explicit Ticket(std::shared_ptr<State> state) : state_(std::move(state)) {}
  /// True when wait() would not block. An empty ticket is done.
  bool done() const { return !state_ || state_->done(); }
  /// Blocks until done; throws what the operation threw (Timeout, PeerLost), again on every call.
  void wait() {
    if (state_) state_->wait();
  }
  const std::shared_ptr<State>& state() const { return state_; }
  /// Begin and end in now_seconds(), from its turn on its communicator to its end; zeros when
  /// unknown.
  std::pair<double, double> interval() const {
    return state_ && state_->done() ? state_->interval() : std::pair<double, double>{0, 0};
  }

 private:
  std::shared_ptr<State> state_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int64_t position() const = 0;
  virtual int64_t size() const = 0;
  /// Starts an operation after `after` are done; returns at once. Throws UserError on bad counts.
  virtual Ticket start(const Call& call, const std::vector<Ticket>& after = {}) = 0;
  /// start() and wait(), on the calling thread where the backend can: for operations so short that
  /// handing them to another thread would take longer.
  virtual void run(const Call& call) { start(call).wait(); }
  /// Adds what this member sent since the last call to `ledger`, and forgets it. Call when idle.
  virtual void drain_ledger(Ledger& ledger) = 0;
};

/// Why a rank gives up, and so what its peers throw: PeerLost, NonFinite or NothingFits.
enum class Cause : uint8_t { kLost, kNonFinite, kNothingFits };

/// One rank's door to the world: makes communicators. Backends implement it.
class World {
 public:
  virtual ~World() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  /// Communicator over `members` (ranks of the world, ascending, this rank among them). All members
  /// must ask for the same (members, lane); cached, so a second request returns the same one.
  virtual Communicator& communicator(const std::vector<int64_t>& members, int64_t lane) = 0;
  /// Tells all ranks that this one gives up: their pending and later operations throw what `cause`
  /// says, with `reason`. `place` has the rank to blame (this one when it is not set), its
  /// operation and step: all ranks name the same. The first call of the world stands.
  virtual void abort(const std::string& reason, const ErrorPlace& place, Cause cause) = 0;
  void abort(const std::string& reason, const ErrorPlace& place = {}) {
    abort(reason, place, Cause::kLost);
  }
  /// For ranks that do not meet in every step: whether this one begins `step`. Call before every
  /// step but the first. Once one was `asked` to stop, all get false for the same step: the first
  /// that none of them has begun. Waits for no rank's program; between hosts a moment, once.
  virtual bool begins_step(int64_t step, bool asked, double deadline_seconds) = 0;
  /// This rank's row of the table of waits (wait_table.h), or null when the backend keeps none. The
  /// backend writes the lanes and the waits; who computes in between writes busy().
  virtual WaitRow* waits() { return nullptr; }
};

}  // namespace strait::comm
