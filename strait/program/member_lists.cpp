#include "strait/program/member_lists.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace strait::program {

MemberLists::MemberLists(std::vector<std::vector<int64_t>> lists) : lists_(std::move(lists)) {
  for (size_t list = 0; list < lists_.size(); ++list)
    for (size_t at = 0; at < lists_[list].size(); ++at)
      places_.push_back({lists_[list][at], static_cast<int64_t>(list), static_cast<int64_t>(at)});
  std::stable_sort(places_.begin(), places_.end(),
                   [](const Place& a, const Place& b) { return a.rank < b.rank; });
}

const MemberLists::Place* MemberLists::find(int64_t rank) const {
  const auto found =
      std::lower_bound(places_.begin(), places_.end(), rank,
                       [](const Place& place, int64_t wanted) { return place.rank < wanted; });
  return found == places_.end() || found->rank != rank ? nullptr : &*found;
}

int64_t MemberLists::position(int64_t rank) const {
  const Place* place = find(rank);
  return place == nullptr ? -1 : place->position;
}

int64_t MemberLists::member(int64_t rank, int64_t at) const {
  const Place* place = find(rank);
  return place == nullptr ? -1 : lists_[place->list].at(at);
}

std::string MemberLists::problem(int64_t size, int64_t ranks) const {
  for (const std::vector<int64_t>& list : lists_) {
    if (static_cast<int64_t>(list.size()) != size)
      return fmt::format("lists {}, which are not {} ranks", fmt::join(list, ", "), size);
    if (std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) != list.end())
      return fmt::format("lists {}, which do not ascend", fmt::join(list, ", "));
  }
  for (size_t at = 0; at < places_.size(); ++at) {
    const int64_t rank = places_[at].rank;
    if (rank < 0 || rank >= ranks)
      return fmt::format("lists rank {} of a world of {}", rank, ranks);
    if (at > 0 && places_[at - 1].rank == rank) return fmt::format("lists rank {} twice", rank);
  }
  return "";
}

}  // namespace strait::program
