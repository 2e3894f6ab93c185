// Groups of ranks that no stride describes: explicit lists of members.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace strait::program {

/// Disjoint lists of ranks, each ascending and all of one length; ranks in none take no part. Plain
/// data: any class may name any lists without asking other ranks, and the verifier refuses lists
/// that break these rules. Lookups O(log ranks).
class MemberLists {
 public:
  MemberLists() = default;
  explicit MemberLists(std::vector<std::vector<int64_t>> lists);

  bool empty() const { return lists_.empty(); }
  const std::vector<std::vector<int64_t>>& lists() const { return lists_; }
  /// Position of `rank` in its list, -1 when it is in none.
  int64_t position(int64_t rank) const;
  /// Rank at position `at` of the list that holds `rank`, -1 when there is none.
  int64_t member(int64_t rank, int64_t at) const;
  /// What is wrong with lists of `size` members in a world of `ranks`; empty when nothing is.
  std::string problem(int64_t size, int64_t ranks) const;
  bool operator==(const MemberLists& other) const { return lists_ == other.lists_; }

 private:
  struct Place {
    int64_t rank = 0, list = 0, position = 0;
  };
  const Place* find(int64_t rank) const;

  std::vector<std::vector<int64_t>> lists_;
  std::vector<Place> places_;  // by rank
};

}  // namespace strait::program
