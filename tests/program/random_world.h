// The world of random programs: groups, rank classes and values that their operations draw from.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "strait/base/random.h"
#include "strait/program/program.h"

namespace strait::program {

/// Numbers one after another from one seed.
class Draws {
 public:
  explicit Draws(uint64_t seed) : random_(seed, "random program") {}

  int64_t below(int64_t bound) {
    return static_cast<int64_t>(random_.below(counter_++, static_cast<uint64_t>(bound)));
  }
  bool one_in(int64_t bound) { return below(bound) == 0; }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[below(static_cast<int64_t>(from.size()))];
  }

 private:
  RandomStream random_;
  uint64_t counter_ = 0;
};

/// Equal arrays: a family (a number of elements and a dtype), whole or as parts over a group.
struct ArrayPair {
  int family = 0;
  int group = -1;     // parts over this group, -1 = whole
  int resident = 0;   // array
  int transient = 0;  // array
};

/// Declares what scripts work on. The programs have no operations yet.
class RandomWorld {
 public:
  static constexpr int kLanes = 3;
  static constexpr int64_t kCount = 4;  // elements of every array

  RandomWorld(Draws& draws, int64_t ranks) : draws_(draws), ranks_(ranks) {
    Program program = empty_program();
    declare_groups(program.groups);
    // Classes are the positions in one group; messages run along it.
    line = static_cast<int>(draws_.below(static_cast<int64_t>(program.groups.size())));
    const int64_t num_classes = draws_.one_in(4) ? 1 : program.groups[line].size;
    classes.assign(static_cast<size_t>(num_classes), program);
    for (int64_t rank = 0; num_classes > 1 && rank < ranks_; ++rank)
      classes[program.groups[line].position(rank)].members.push_back(rank);
    declare_values(static_cast<int>(program.groups.size()));
  }

  std::vector<Program> classes;
  std::vector<ArrayPair> pairs;
  int line = 0;  // group along which messages run

 private:
  Program empty_program() const {
    Program program;
    program.name = "random";
    program.step_kind = "steady";
    program.ranks = ranks_;
    program.streams = {{"compute", 0}};
    for (int64_t lane = 0; lane < kLanes; ++lane) program.streams.push_back({"world", lane});
    return program;
  }

  void declare_groups(std::vector<Group>& groups) {
    groups = {{"world", ranks_, 1, 0}};
    for (int64_t size = 1; size < ranks_; ++size) {
      if (ranks_ % size != 0) continue;
      groups.push_back({"near" + std::to_string(size), size, 1, 0});
      if (size > 1) groups.push_back({"far" + std::to_string(size), ranks_ / size, size, 0});
    }
    for (int trial = 0; ranks_ % 2 == 0 && trial < 8; ++trial) {
      const Group pairs_of_ranks = mixed_pairs();
      if (coincides(groups, pairs_of_ranks)) continue;
      groups.push_back(pairs_of_ranks);
      return;
    }
  }

  /// Pairs of ranks that no stride describes, most of the time.
  Group mixed_pairs() {
    std::vector<int64_t> ranks;
    for (int64_t rank = 0; rank < ranks_; ++rank)
      ranks.insert(ranks.begin() + draws_.below(rank + 1), rank);
    std::vector<std::vector<int64_t>> lists;
    for (int64_t rank = 0; rank < ranks_; rank += 2)
      lists.push_back(
          {std::min(ranks[rank], ranks[rank + 1]), std::max(ranks[rank], ranks[rank + 1])});
    return {"mixed", 2, 1, 0, {}, MemberLists(std::move(lists))};
  }

  /// Whether a group has the ranks of another one somewhere, but not everywhere.
  bool coincides(const std::vector<Group>& groups, const Group& listed) const {
    for (const Group& other : groups) {
      if (other.size != 2 || same_members(other, listed, ranks_)) continue;
      for (int64_t rank = 0; rank < ranks_; ++rank)
        if (other.members(rank) == listed.members(rank)) return true;
    }
    return false;
  }

  void declare_values(int num_groups) {
    for (int family = 0; family < 2; ++family) {
      const int64_t elements = draws_.pick(std::vector<int64_t>{0, 1, 5, 24, 33});
      const Dtype dtype = draws_.one_in(2) ? Dtype::kFloat32 : Dtype::kFloat64;
      for (int group = -1; group < num_groups; ++group) {
        const int64_t size = group < 0 ? 1 : classes[0].groups[group].size;
        const int64_t grain = (elements + size - 1) / size + (group < 0 ? 0 : draws_.below(3));
        ValueArray array;
        array.name =
            std::to_string(family) + (group < 0 ? "" : "." + classes[0].groups[group].name);
        array.count = kCount;
        array.dtype = dtype;
        array.partition = {elements, grain};
        array.group = group;
        pairs.push_back({family, group, declare(array, "r", Lifetime::kResident),
                         declare(array, "t", Lifetime::kTransient)});
      }
    }
  }

  int declare(ValueArray array, const std::string& prefix, Lifetime lifetime) {
    array.name = prefix + array.name;
    array.lifetime = lifetime;
    for (Program& program : classes) program.arrays.push_back(array);
    return static_cast<int>(classes[0].arrays.size()) - 1;
  }

  Draws& draws_;
  int64_t ranks_;
};

}  // namespace strait::program
