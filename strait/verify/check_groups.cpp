// Whether the groups of every class are well formed and the classes mean the same ranks by them:
// each builder writes its groups down alone, without asking the ranks that it names.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "strait/verify/findings.h"

namespace strait::program {

namespace {

/// What is wrong with one group by itself; empty when nothing is.
std::string strided_problem(const Group& group, int64_t ranks) {
  if (group.size < 1 || group.stride < 1 || ranks % (group.size * group.stride) != 0)
    return fmt::format("of {} ranks, {} apart, does not divide a world of {}", group.size,
                       group.stride, ranks);
  if (group.nest.empty()) return "";
  const bool sized = std::ranges::all_of(group.nest, [](int64_t hop) { return hop >= 1; });
  if (!sized || group.size * group.stride % group.parts() != 0 || group.nest.back() != group.size)
    return fmt::format("of {} ranks, {} apart, has hops of {} ranks inside", group.size,
                       group.stride, group.parts());
  return "";
}

std::string group_problem(const Group& group, int64_t ranks) {
  if (group.lists.empty()) return strided_problem(group, ranks);
  if (group.stride != 1 || !group.nest.empty())
    return "lists its members, so it has neither a stride nor hops";
  return group.lists.problem(group.size, ranks);
}

/// Groups that operations or values of a program use; unknown numbers are reported elsewhere.
std::set<int> used_groups(const Program& program) {
  std::set<int> used;
  for_each_op(program.body, [&](const Op& op) { used.insert(op.group); });
  for (const ValueArray& array : program.arrays) used.insert(array.group);
  std::erase_if(used, [&](int group) {
    return group < 0 || group >= static_cast<int>(program.groups.size());
  });
  return used;
}

/// A group of one class, as compared with those of the others.
struct Named {
  int64_t rank_class = 0;
  const Group* group = nullptr;
};

class GroupCheck {
 public:
  explicit GroupCheck(Findings& findings) : findings_(findings) {}

  void run() {
    const std::vector<Program>& classes = findings_.classes();
    for (size_t c = 0; c < classes.size(); ++c) one_class(static_cast<int64_t>(c));
    if (!findings_.empty()) return;
    std::vector<Named> known;
    for (size_t c = 0; c < classes.size(); ++c) {
      for (const Group& group : classes[c].groups) {
        const Named named{static_cast<int64_t>(c), &group};
        if (agrees(known, named)) known.push_back(named);
      }
    }
  }

 private:
  void one_class(int64_t rank_class) {
    const Program& program = findings_.classes()[rank_class];
    for (const Group& group : program.groups) {
      const std::string what = group_problem(group, program.ranks);
      if (!what.empty())
        findings_.add("malformed", {rank_class}, fmt::format("group {} {}", group.name, what));
    }
    for (const int used : used_groups(program)) members_lack(rank_class, program.groups[used]);
  }

  /// A class works only with groups that hold all its ranks.
  void members_lack(int64_t rank_class, const Group& group) {
    if (group.lists.empty()) return;
    for (const int64_t rank : class_ranks(findings_.classes()[rank_class])) {
      if (group.holds(rank)) continue;
      return findings_.add(
          "malformed", {rank_class},
          fmt::format("uses group {}, which does not hold its rank {}", group.name, rank));
    }
  }

  /// Compares a group with those seen so far; true when it is a new one that contradicts none.
  bool agrees(const std::vector<Named>& known, const Named& named) {
    const int64_t ranks = findings_.classes()[0].ranks;
    for (const Named& other : known) {
      const bool same = same_members(*other.group, *named.group, ranks);
      const bool one_name = other.group->name == named.group->name;
      if (same && one_name) return false;
      if (same || !(one_name || (listed(other, named) && share(other, named)))) continue;
      contradict(other, named);
      return false;
    }
    return true;
  }

  static bool listed(const Named& a, const Named& b) {
    return !a.group->lists.empty() || !b.group->lists.empty();
  }

  /// Two groups with the same ranks somewhere are served by one communicator there, whose order of
  /// operations could not be told from either group alone.
  bool share(const Named& a, const Named& b) const {
    if (a.group->size != b.group->size || a.group->size == 1) return false;
    for (int64_t rank = 0; rank < findings_.classes()[0].ranks; ++rank)
      if (a.group->position(rank) == 0 && b.group->position(rank) == 0 &&
          a.group->members(rank) == b.group->members(rank))
        return true;
    return false;
  }

  void contradict(const Named& a, const Named& b) {
    for (int64_t rank = 0; rank < findings_.classes()[0].ranks; ++rank) {
      const std::vector<int64_t> left = members(a, rank), right = members(b, rank);
      if (left == right) continue;
      return findings_.add(
          "group-members", {b.rank_class},
          fmt::format("group {} joins rank {} with {} where group {} of rank class {} has {}",
                      b.group->name, rank, text(right), a.group->name, a.rank_class, text(left)));
    }
  }

  static std::vector<int64_t> members(const Named& named, int64_t rank) {
    return named.group->holds(rank) ? named.group->members(rank) : std::vector<int64_t>{};
  }

  static std::string text(std::vector<int64_t> members) {
    constexpr size_t kMostShown = 8;
    if (members.empty()) return "nobody";
    const bool more = members.size() > kMostShown;
    if (more) members.resize(kMostShown);
    return fmt::format("ranks {}{}", fmt::join(members, ", "), more ? ", ..." : "");
  }

  Findings& findings_;
};

}  // namespace

void check_groups(Findings& findings) { GroupCheck(findings).run(); }

}  // namespace strait::program
