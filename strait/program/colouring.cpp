#include "strait/program/colouring.h"

#include <algorithm>
#include <unordered_map>

namespace strait::program {

Colouring::Colouring(const Exchange& exchange) : exchange_(exchange) {
  for (int64_t rank = 0; rank < exchange.ranks(); ++rank)
    colour_.push_back(exchange.class_of(rank));
  number_by_rank();
  const int channels = static_cast<int>(exchange.channels().size());
  bool messages = false;
  for (int channel = 0; channel < channels; ++channel)
    messages = messages || exchange.has_messages(channel);
  if (colours() == 1 && !messages) return;
  for (int64_t before = 0; before < colours();) {
    before = colours();
    for (int channel = 0; channel < channels; ++channel) refine(channel);
    number_by_rank();
  }
}

std::vector<int64_t> Colouring::surroundings(int channel, int64_t rank) const {
  std::vector<int64_t> members = exchange_.channels()[channel].group.members(rank);
  for (int64_t& member : members) member = colour_[member];
  if (exchange_.has_messages(channel)) return members;
  std::sort(members.begin(), members.end());
  members.erase(std::unique(members.begin(), members.end()), members.end());
  return members;
}

void Colouring::refine(int channel) {
  const Group& group = exchange_.channels()[channel].group;
  const bool ordered = exchange_.has_messages(channel);
  std::map<std::vector<int64_t>, int64_t> known;  // surroundings -> number
  std::vector<int64_t> seen(colour_.size(), 0);   // what a rank sees of the channel, from 1
  for (int64_t rank = 0; rank < exchange_.ranks(); ++rank) {
    if (group.position(rank) != 0 || !exchange_.uses(exchange_.class_of(rank), channel)) continue;
    const int64_t next = static_cast<int64_t>(known.size());
    const int64_t number = known.emplace(surroundings(channel, rank), next).first->second;
    for (int64_t at = 0; at < group.size; ++at)
      seen[group.member(rank, at)] = 1 + number * group.size + (ordered ? at : 0);
  }
  const int64_t most = *std::max_element(seen.begin(), seen.end()) + 1;
  std::unordered_map<int64_t, int64_t> colours;  // (colour, what is seen) -> new colour
  for (size_t rank = 0; rank < colour_.size(); ++rank) {
    const int64_t next = static_cast<int64_t>(colours.size());
    colour_[rank] = colours.try_emplace(colour_[rank] * most + seen[rank], next).first->second;
  }
}

void Colouring::number_by_rank() {
  representative_.clear();
  count_.clear();
  std::unordered_map<int64_t, int64_t> numbers;
  for (size_t rank = 0; rank < colour_.size(); ++rank) {
    const auto [found, fresh] = numbers.try_emplace(colour_[rank], colours());
    if (fresh) {
      representative_.push_back(static_cast<int64_t>(rank));
      count_.push_back(0);
    }
    colour_[rank] = found->second;
    ++count_[found->second];
  }
}

Meetings::Meetings(const Exchange& exchange, const Colouring& colouring) : exchange_(exchange) {
  Known known;
  meetings_.resize(colouring.colours());
  for (int64_t colour = 0; colour < colouring.colours(); ++colour) place(colouring, colour, known);
}

void Meetings::place(const Colouring& colouring, int64_t colour, Known& known) {
  const int64_t rank = colouring.rank(colour), rank_class = exchange_.class_of(rank);
  meetings_[colour].assign(exchange_.transfers(rank_class).size(), -1);
  for (int channel = 0; channel < static_cast<int>(exchange_.channels().size()); ++channel) {
    if (!exchange_.uses(rank_class, channel)) continue;
    const std::vector<int64_t> surroundings = colouring.surroundings(channel, rank);
    const int64_t position = exchange_.channels()[channel].group.position(rank);
    const auto meet = [&](int64_t sender, int64_t receiver) -> std::vector<int64_t>& {
      std::vector<int64_t> key = {channel, sender, receiver};
      key.insert(key.end(), surroundings.begin(), surroundings.end());
      return known[key];
    };
    join(colour, exchange_.collectives(rank_class, channel), meet(-1, -1));
    for (const auto& [peer, numbers] : exchange_.sends(rank_class, channel))
      join(colour, numbers, meet(position, peer));
    for (const auto& [peer, numbers] : exchange_.receives(rank_class, channel))
      join(colour, numbers, meet(peer, position));
  }
}

void Meetings::join(int64_t colour, const std::vector<int64_t>& numbers,
                    std::vector<int64_t>& meetings) {
  for (size_t k = 0; k < numbers.size(); ++k) {
    if (k >= meetings.size()) {
      meetings.push_back(count());
      sides_.push_back(0);
    }
    meetings_[colour][numbers[k]] = meetings[k];
    ++sides_[meetings[k]];
  }
}

}  // namespace strait::program
