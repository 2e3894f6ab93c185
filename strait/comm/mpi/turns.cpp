#include "strait/comm/mpi/turns.h"

#include <algorithm>
#include <map>

namespace strait::comm {

/// Cut alike at both ends, which have the same cluster.
void Turns::add_pieces(Passage& passage, std::vector<Piece>& pieces) {
  passage.pieces.resize(static_cast<size_t>(pieces_of(passage.bytes, passage.seconds)));
  for (size_t number = 0; number < passage.pieces.size(); ++number)
    pieces.push_back({&passage, number});
}

void Turns::begin(int64_t step, std::vector<Passage> landings, std::vector<Passage> sendings) {
  struct Turn {
    std::vector<Piece> in, out;
  };
  std::map<int64_t, Turn> turns;
  landings_[step & 1] = std::move(landings);
  for (Passage& landing : landings_[step & 1]) add_pieces(landing, turns[landing.turn].in);
  for (Passage& sending : sendings) {
    sendings_.push_back(std::move(sending));
    add_pieces(sendings_.back(), turns[sendings_.back().turn].out);
  }
  for (const auto& [number, turn] : turns)
    for (size_t at = 0; at < std::max(turn.in.size(), turn.out.size()); ++at)
      waiting_.push_back({at < turn.in.size() ? turn.in[at] : Piece{},
                          at < turn.out.size() ? turn.out[at] : Piece{}});
  post_pairs();
}

double Turns::Pair::seconds() const {
  return std::max(in.is_under_way() ? in.seconds() : 0, out.is_under_way() ? out.seconds() : 0);
}

void Turns::post(const Pair& pair) {
  if (pair.in.passage != nullptr)
    pair.in.message() =
        messages_.receive(pair.in.data(), pair.in.bytes(), pair.in.passage->other, tag_);
  if (pair.out.passage != nullptr)
    pair.out.message() =
        messages_.send(pair.out.data(), pair.out.bytes(), pair.out.passage->other, tag_);
}

void Turns::drop_ended() {
  for (Pair& pair : under_way_)
    for (Piece* piece : {&pair.in, &pair.out})
      if (!piece->is_under_way()) *piece = {};
  std::erase_if(under_way_, [](const Pair& pair) { return !pair.is_under_way(); });
}

void Turns::post_pairs() {
  drop_ended();
  double busy = 0;
  for (const Pair& pair : under_way_) busy += pair.seconds();
  while (next_ < waiting_.size() && (busy < kBusySeconds || under_way_.size() < kLeastPairs)) {
    const Pair& pair = waiting_[next_++];
    post(pair);
    busy += pair.seconds();
    under_way_.push_back(pair);
  }
}

void Turns::forget(int64_t step) {
  drop_ended();
  landings_[step & 1].clear();
}

void Turns::collect(std::vector<Message*>& under_way) {
  post_pairs();
  for (const Pair& pair : under_way_)
    for (const Piece& piece : {pair.in, pair.out})
      if (piece.is_under_way()) under_way.push_back(&piece.message());
}

bool Turns::all_sent() {
  return std::all_of(sendings_.begin(), sendings_.end(),
                     [](Passage& sending) { return sending.is_done(); });
}

std::vector<int64_t> Turns::awaited() const {
  std::vector<int64_t> ranks;
  for (const Pair& pair : under_way_)
    for (const Piece& piece : {pair.in, pair.out})
      if (piece.is_under_way()) ranks.push_back(piece.passage->other);
  return ranks;
}

}  // namespace strait::comm
