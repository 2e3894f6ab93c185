// Messages of one call to and from other hosts, in turns where a link is narrow.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "strait/comm/mpi/messages.h"

namespace strait::comm {

/// A message from another host: straight to its place, or to where it is added from.
struct Landing {
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t from = 0;    // rank
  int64_t turn = 0;    // positions after the receiver's, around the group
  double seconds = 0;  // of its link
  bool in_place = false;
  Message message{};
};

struct Sending {
  const char* data = nullptr;
  int64_t bytes = 0;
  int64_t to = 0;    // rank
  int64_t turn = 0;  // positions before the sender's, around the group
  double seconds = 0;
  int64_t level = 0;  // of the link
  Message message{};
};

/// Senders that all begin at once overflow the queue before a narrow link, and what is lost comes
/// again: three of them get 0.6 to 1.1 MB/s through 10 Mbit/s, one after another 1.19. So in turn t
/// a member receives from the t-th after it and sends to the t-th before it, and the next turn
/// begins when both are done (the pairwise exchange): a link has one sender at a time. Turns that
/// together take a link less than kBusySeconds begin together, so that short messages and fast
/// links wait for nothing.
///
/// Two steps at most are under way, told apart by parity. One thread.
class Turns {
 public:
  Turns(Messages& messages, int tag) : messages_(messages), tag_(tag) {}

  /// The messages of a step, behind those of the step before. Landings stand in the order in which
  /// they are taken; those of one pair of members in the order in which they are sent.
  void begin(int64_t step, std::vector<Landing> landings, std::vector<Sending> sendings);
  /// Begins the turns that may, and adds the messages that are under way.
  void collect(std::vector<Message*>& under_way);

  const Landing& landing(int64_t step, size_t number) const { return landings_[step & 1][number]; }
  /// All landings of `step` have been taken.
  void forget(int64_t step) { landings_[step & 1].clear(); }
  const std::deque<Sending>& sendings() const { return sendings_; }
  bool all_sent() const;

  /// The ranks that a wait for `landing` waits for.
  std::vector<int64_t> awaited(const Landing& landing) const;
  /// Those that a wait for the end of all sends waits for.
  std::vector<int64_t> awaited() const;

 private:
  static constexpr double kBusySeconds = 0.02;

  struct Turn {
    std::vector<Landing*> landings;
    std::vector<Sending*> sendings;
  };
  void post_turns();
  double busy_seconds() const;
  static bool is_under_way(const Message& message) {
    return !message.requests.empty() && !message.done;
  }

  Messages& messages_;
  const int tag_;
  std::vector<Landing> landings_[2];
  std::deque<Sending> sendings_;
  std::deque<Turn> waiting_;  // have not begun
};

}  // namespace strait::comm
