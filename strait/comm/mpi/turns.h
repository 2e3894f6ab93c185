// Messages of one call to and from other hosts, in turns where a link is narrow.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <vector>

#include "strait/comm/mpi/messages.h"
#include "strait/comm/mpi/pieces.h"

namespace strait::comm {

/// What travels between this member and one on another host.
struct Passage {
  char* data = nullptr;
  int64_t bytes = 0;
  int64_t other = 0;     // rank
  int64_t turn = 0;      // positions from the receiver's up to the sender's, around the group
  int64_t level = 0;     // of the link
  double seconds = 0;    // of the link, for all of it
  bool in_place = true;  // received where it belongs, or where it is added from

  std::vector<Message> pieces{};  // Turns cuts it
  size_t ended = 0;               // of the pieces, in order
  bool is_done() {
    while (ended < pieces.size() && pieces[ended].done) ++ended;
    return ended == pieces.size();
  }
};

/// Senders that all begin at once overflow the queue before a narrow link, and what is lost must
/// come again: three of them get 0.6 to 1.1 MB/s through 10 Mbit/s, one after another 1.19. So in
/// turn t a member receives from the t-th after it and sends to the t-th before it (the pairwise
/// exchange): a link has one sender at a time. Messages go in pieces that MPI sends unasked
/// (pieces.h), one for each that comes, with a few ahead: no handshake waits in the queue behind
/// them, and the next turn follows the last one without a gap. What takes a link less than
/// kBusySeconds begins at once, so that short messages and fast links wait for nothing.
///
/// Two steps at most are under way, told apart by parity. One thread.
class Turns {
 public:
  Turns(Messages& messages, int tag) : messages_(messages), tag_(tag) {}

  /// The messages of a step, behind those of the step before. Landings stand in the order in which
  /// they are taken; those of one pair of members in the order in which they are sent.
  void begin(int64_t step, std::vector<Passage> landings, std::vector<Passage> sendings);
  /// Begins what may, and adds the messages that are under way.
  void collect(std::vector<Message*>& under_way);
  /// Whether there are messages that collect() has not begun.
  bool has_waiting() const { return next_ < waiting_.size(); }

  Passage& landing(int64_t step, size_t number) { return landings_[step & 1][number]; }
  /// All landings of `step` have been taken.
  void forget(int64_t step);
  const std::list<Passage>& sendings() const { return sendings_; }
  bool all_sent();

  /// The ranks that this member waits for now.
  std::vector<int64_t> awaited() const;

 private:
  static constexpr double kBusySeconds = 0.05;
  static constexpr size_t kLeastPairs = 2;

  struct Piece {
    Passage* passage = nullptr;
    size_t number = 0;
    Message& message() const { return passage->pieces[number]; }
    bool is_under_way() const { return passage != nullptr && !message().done; }
    int64_t begin() const { return static_cast<int64_t>(number) * kPieceBytes; }
    int64_t bytes() const {
      return passage->pieces.size() == 1 ? passage->bytes
                                         : std::min(kPieceBytes, passage->bytes - begin());
    }
    char* data() const { return passage->data + begin(); }
    double seconds() const {
      return passage->seconds / static_cast<double>(passage->pieces.size());
    }
  };
  struct Pair {
    Piece in, out;
    bool is_under_way() const { return in.is_under_way() || out.is_under_way(); }
    double seconds() const;
  };
  static void add_pieces(Passage& passage, std::vector<Piece>& pieces);
  void post(const Pair& pair);
  void drop_ended();
  void post_pairs();

  Messages& messages_;
  const int tag_;
  std::vector<Passage> landings_[2];
  std::list<Passage> sendings_;
  std::vector<Pair> waiting_, under_way_;
  size_t next_ = 0;  // of those that wait
};

}  // namespace strait::comm
