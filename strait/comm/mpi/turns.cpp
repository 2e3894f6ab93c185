#include "strait/comm/mpi/turns.h"

#include <algorithm>
#include <map>

namespace strait::comm {

void Turns::begin(int64_t step, std::vector<Landing> landings, std::vector<Sending> sendings) {
  std::map<int64_t, Turn> turns;
  landings_[step & 1] = std::move(landings);
  for (Landing& landing : landings_[step & 1]) turns[landing.turn].landings.push_back(&landing);
  for (Sending& sending : sendings)
    turns[sending.turn].sendings.push_back(&sendings_.emplace_back(std::move(sending)));
  for (auto& [number, turn] : turns) waiting_.push_back(std::move(turn));
  post_turns();
}

double Turns::busy_seconds() const {
  double in = 0, out = 0;
  for (const std::vector<Landing>& landings : landings_)
    for (const Landing& landing : landings)
      if (is_under_way(landing.message)) in += landing.seconds;
  for (const Sending& sending : sendings_)
    if (is_under_way(sending.message)) out += sending.seconds;
  return std::max(in, out);
}

void Turns::post_turns() {
  while (!waiting_.empty() && busy_seconds() < kBusySeconds) {
    const Turn& turn = waiting_.front();
    for (Landing* landing : turn.landings)
      landing->message = messages_.receive(landing->data, landing->bytes, landing->from, tag_);
    for (Sending* sending : turn.sendings)
      sending->message = messages_.send(sending->data, sending->bytes, sending->to, tag_);
    waiting_.pop_front();
  }
}

void Turns::collect(std::vector<Message*>& under_way) {
  post_turns();
  for (Sending& sending : sendings_)
    if (is_under_way(sending.message)) under_way.push_back(&sending.message);
  for (std::vector<Landing>& landings : landings_)
    for (Landing& landing : landings)
      if (is_under_way(landing.message)) under_way.push_back(&landing.message);
}

bool Turns::all_sent() const {
  return std::all_of(sendings_.begin(), sendings_.end(),
                     [](const Sending& sending) { return sending.message.done; });
}

std::vector<int64_t> Turns::awaited(const Landing& landing) const {
  return is_under_way(landing.message) ? std::vector<int64_t>{landing.from} : awaited();
}

std::vector<int64_t> Turns::awaited() const {
  std::vector<int64_t> ranks;
  for (const std::vector<Landing>& landings : landings_)
    for (const Landing& landing : landings)
      if (is_under_way(landing.message)) ranks.push_back(landing.from);
  for (const Sending& sending : sendings_)
    if (is_under_way(sending.message)) ranks.push_back(sending.to);
  return ranks;
}

}  // namespace strait::comm
