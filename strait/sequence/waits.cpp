#include "strait/sequence/waits.h"

#include <fmt/format.h>

#include <algorithm>

namespace strait::sequence {
namespace {

int32_t rounds_of(const Group& group) {
  if (group.ranks.size() == 1) return 0;
  return group.engine == Engine::kRing ? static_cast<int32_t>(group.ranks.size()) - 1 : 1;
}

}  // namespace

std::vector<std::vector<Meeting>> meetings(const Plan& plan) {
  std::vector<std::vector<Meeting>> queues(static_cast<size_t>(plan.grid.ranks()));
  for (size_t ring = 0; ring < plan.groups.size(); ++ring)
    for (int32_t round = 1; round <= rounds_of(plan.groups[ring]); ++round)
      for (const int32_t rank : plan.groups[ring].ranks)
        queues[static_cast<size_t>(rank)].push_back({static_cast<int32_t>(ring), round});
  return queues;
}

std::string find_circle(const Plan& plan, const std::vector<std::vector<Meeting>>& queues) {
  std::vector<size_t> next(queues.size(), 0);
  const auto stands_at = [&](int32_t rank, const Meeting& meeting) {
    const size_t at = static_cast<size_t>(rank);
    return next[at] < queues[at].size() && queues[at][next[at]] == meeting;
  };
  // A meeting that all members stand at takes place; its members may then complete others.
  std::vector<int32_t> awake(queues.size());
  for (size_t rank = 0; rank < queues.size(); ++rank) awake[rank] = static_cast<int32_t>(rank);
  while (!awake.empty()) {
    const size_t rank = static_cast<size_t>(awake.back());
    awake.pop_back();
    if (next[rank] == queues[rank].size()) continue;
    const Meeting meeting = queues[rank][next[rank]];
    const std::vector<int32_t>& members = plan.groups[static_cast<size_t>(meeting.ring)].ranks;
    if (!std::ranges::all_of(members, [&](int32_t member) { return stands_at(member, meeting); }))
      continue;
    for (const int32_t member : members) {
      ++next[static_cast<size_t>(member)];
      awake.push_back(member);
    }
  }
  for (size_t rank = 0; rank < queues.size(); ++rank) {
    if (next[rank] == queues[rank].size()) continue;
    const Meeting meeting = queues[rank][next[rank]];
    for (const int32_t member : plan.groups[static_cast<size_t>(meeting.ring)].ranks)
      if (!stands_at(member, meeting))
        return fmt::format("rank {} waits in round {} of ring {} for rank {}, which is not there",
                           rank, meeting.round, meeting.ring, member);
  }
  return "";
}

}  // namespace strait::sequence
