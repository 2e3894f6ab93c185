#include "strait/collective/nesting.h"

#include <algorithm>
#include <string>

#include "strait/base/errors.h"

namespace strait::collective {

void check_nest(const Nest& nest, int64_t members) {
  for (size_t level = 0; level < nest.size(); ++level) {
    const std::vector<int64_t>& groups = nest[level];
    if (static_cast<int64_t>(groups.size()) != members)
      throw UserError("level " + std::to_string(level) + " of a nest has " +
                      std::to_string(groups.size()) + " positions for " + std::to_string(members) +
                      " members");
    for (int64_t at = 1; at < members; ++at) {
      if (groups[at] < groups[at - 1])
        throw UserError("level " + std::to_string(level) +
                        " of a nest: group numbers must not descend, but " +
                        std::to_string(groups[at]) + " follows " + std::to_string(groups[at - 1]));
      if (level > 0 && groups[at] != groups[at - 1] &&
          nest[level - 1][at] == nest[level - 1][at - 1])
        throw UserError("level " + std::to_string(level) + " of a nest parts a group of level " +
                        std::to_string(level - 1) + " at position " + std::to_string(at));
    }
  }
}

Nest nest_of(const Cluster& cluster, const std::vector<int64_t>& members) {
  Nest nest;
  for (size_t level = 0; level < cluster.levels.size(); ++level) {
    const int64_t size = cluster.group_size(static_cast<int64_t>(level));
    std::vector<int64_t> groups;
    int64_t distinct = 0;
    for (size_t at = 0; at < members.size(); ++at) {
      groups.push_back(members[at] / size);
      distinct += at == 0 || groups[at] != groups[at - 1] ? 1 : 0;
    }
    if (distinct == 1) break;
    const bool single = distinct == static_cast<int64_t>(members.size());
    if (!single && (nest.empty() || nest.back() != groups)) nest.push_back(std::move(groups));
  }
  return nest;
}

Nesting::Nesting(const Nest& nest, int64_t members) {
  for (const std::vector<int64_t>& level : nest) {
    std::vector<Group> groups;
    std::vector<int64_t> number;
    for (int64_t at = 0; at < members; ++at) {
      if (at == 0 || level[at] != level[at - 1]) groups.push_back({at, at});
      groups.back().end = at + 1;
      number.push_back(static_cast<int64_t>(groups.size()) - 1);
    }
    groups_.push_back(std::move(groups));
    number_.push_back(std::move(number));
  }
  groups_.push_back({{0, members}});
  number_.emplace_back(static_cast<size_t>(members), 0);
}

const Nesting::Group& Nesting::group(int64_t member, int64_t level) const {
  return groups_[level][number_[level][member]];
}

int64_t Nesting::holder(int64_t part, int64_t member, int64_t level) const {
  int64_t result = part;  // of the whole
  for (int64_t at = levels() - 2; at >= level; --at) {
    const Group& own = group(member, at);
    if (result >= own.begin && result < own.end) continue;
    const int64_t place = part - group(part, at).begin;
    result = own.begin + place % (own.end - own.begin);
  }
  return result;
}

std::vector<int64_t> Nesting::children(int64_t part, int64_t member, int64_t level) const {
  const Group& whole = group(member, level);
  std::vector<int64_t> result;
  for (int64_t at = whole.begin; at < whole.end;) {
    result.push_back(level == 0 ? at : holder(part, at, level - 1));
    at = level == 0 ? at + 1 : group(at, level - 1).end;
  }
  return result;
}

Nesting::Parent Nesting::parent(int64_t part, int64_t member) const {
  if (part == member) return {member, 0};
  int64_t level = 0;
  while (holder(part, member, level) == member) ++level;
  return {holder(part, member, level), level};
}

}  // namespace strait::collective
