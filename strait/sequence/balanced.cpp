#include "strait/sequence/balanced.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "strait/sequence/buckets.h"

namespace strait::sequence {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// 2 sqrt(e): of the bound in the header.
int64_t even_share(int64_t tokens, int64_t ranks) {
  return std::llround(
      std::ceil(2 * std::sqrt(static_cast<double>(tokens) / static_cast<double>(ranks))));
}

Plan plan_of_shares(const Batch& batch, const RankGrid& grid, int64_t share) {
  Plan plan{grid, {batch.lengths.begin(), batch.lengths.end()}, {}};
  std::vector<std::pair<int64_t, int32_t>> taken;  // tokens, rings rounded up, and the rank
  for (int32_t rank = 0; rank < grid.ranks(); ++rank) taken.emplace_back(0, rank);
  std::vector<Group> alone(taken.size());
  for (const int32_t document : batch.longest_first) {
    const int64_t length = batch.lengths[static_cast<size_t>(document)];
    const int64_t ring = std::clamp<int64_t>(ceil_div(length, share), 1, grid.ranks());
    std::partial_sort(taken.begin(), taken.begin() + ring, taken.end());
    Group group{.documents = {document}};
    for (int64_t at = 0; at < ring; ++at) {
      auto& [tokens, rank] = taken[static_cast<size_t>(at)];
      tokens += most_of_ring(length, ring);
      group.ranks.push_back(rank);
    }
    if (ring == 1) {
      Group& own = alone[static_cast<size_t>(group.ranks.front())];
      own.ranks = group.ranks;
      own.documents.push_back(document);
      continue;
    }
    std::ranges::sort(group.ranks);
    group.zone = zone_of(grid, group.ranks);
    plan.groups.push_back(std::move(group));
  }
  std::ranges::move(alone, std::back_inserter(plan.groups));
  finish_groups(plan);
  return plan;
}

}  // namespace

Plan balanced_plan(const Batch& batch, const RankGrid& grid) {
  if (batch.lengths.empty()) return {grid, {}, {}};
  const int64_t tokens = std::accumulate(batch.lengths.begin(), batch.lengths.end(), int64_t{0});
  std::vector<int64_t> shares = {even_share(tokens, grid.ranks())};
  for (int64_t share = std::ranges::max(batch.lengths); share > 0; share /= 2)
    shares.push_back(share);
  Plan best;
  int64_t least = -1;
  for (const int64_t share : shares) {
    Plan plan = plan_of_shares(batch, grid, share);
    const int64_t most = most_tokens(plan);
    if (least >= 0 && most >= least) continue;
    least = most;
    best = std::move(plan);
  }
  return best;
}

int64_t enough_capacity(int64_t tokens, int64_t ranks) {
  return ceil_div(tokens, ranks) + 2 * even_share(tokens, ranks) + 4;  // t, too, is rounded up
}

int64_t most_tokens(const Plan& plan) {
  int64_t most = 0;
  for (const Load& load : loads(plan)) most = std::max(most, load.tokens);
  return most;
}

}  // namespace strait::sequence
