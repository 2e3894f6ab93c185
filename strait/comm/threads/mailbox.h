// Sends and receives between the members of one communicator: the k-th receive of j from i takes
// the k-th send of i to j. A send waits in the mailbox without holding up its sender.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "strait/comm/threads/mover.h"
#include "strait/comm/threads/rounds.h"

namespace strait::comm {

/// A send on its way.
struct Parcel {
  std::shared_ptr<const Call> call;
  /// Called once, by the receiver: bytes that went, or why none did.
  std::function<void(int64_t bytes, const std::optional<Failure>&)> complete;
  SteadyTime deadline;               // on the hub's clock
  std::optional<Failure> withdrawn;  // why the sender gave it up; guarded by the mailbox
};

/// Thread-safe.
class Mailbox {
 public:
  explicit Mailbox(Rounds& rounds) : rounds_(rounds) {}

  /// Returns at once; completes the parcel with a failure when the receiver has already given up on
  /// it.
  void post(int64_t from, int64_t to, const std::shared_ptr<Parcel>& parcel);
  /// Gives up on an unclaimed parcel; false when the receiver has it already.
  bool withdraw(int64_t from, int64_t to, const std::shared_ptr<Parcel>& parcel,
                const Failure& why);
  /// Pulls the next parcel into the destination of `call` and completes it. Throws Timeout,
  /// PeerLost, or UserError when the two sides disagree (the sender gets it too).
  void receive(int64_t to, const Call& call, const Mover& mover);
  /// Takes the place of a send that will not come; the matching receive throws PeerLost.
  void post_refused(int64_t from, int64_t to, const Failure& why);
  /// Skips one receive, so that later ones still meet the right sends.
  void refuse(int64_t from, int64_t to, const Failure& why);

 private:
  struct Channel {
    std::deque<std::shared_ptr<Parcel>> parcels;
    std::deque<Failure> given_up;  // receives that ended before their send came
    std::atomic<int64_t> waiting{0};
  };
  Channel& channel(int64_t from, int64_t to);
  void deliver(Parcel& parcel, int64_t to, const Call& call, const Mover& mover);

  Rounds& rounds_;
  std::mutex mutex_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<Channel>> channels_;
};

}  // namespace strait::comm
