#include "strait/topology/core_tree.h"

#include <algorithm>
#include <span>

#include "strait/base/errors.h"

namespace strait {
namespace {

void collect(const CoreTree& tree, std::vector<int>& cpus) {
  cpus.insert(cpus.end(), tree.cpus.begin(), tree.cpus.end());
  for (const CoreTree& part : tree.parts) collect(part, cpus);
}

/// Fills shares of `cores` cores each, from the leaves up.
class Division {
 public:
  Division(int64_t cores, int64_t ranks)
      : cores_(static_cast<size_t>(cores)), ranks_(static_cast<size_t>(ranks)) {}

  /// Makes what shares fit inside; returns the cores that are left over.
  std::vector<const CoreTree*> take(const CoreTree& tree) {
    std::vector<const CoreTree*> left;
    if (tree.parts.empty()) left.push_back(&tree);
    for (const CoreTree& part : tree.parts) {
      const std::vector<const CoreTree*> more = take(part);
      left.insert(left.end(), more.begin(), more.end());
    }
    while (left.size() >= cores_ && shares_.size() < ranks_) {
      std::vector<int>& share = shares_.emplace_back();
      for (size_t core = 0; core < cores_; ++core) collect(*left[core], share);
      std::sort(share.begin(), share.end());
      left.erase(left.begin(), left.begin() + static_cast<int64_t>(cores_));
    }
    return left;
  }

  std::vector<std::vector<int>> shares() { return std::move(shares_); }

 private:
  const size_t cores_, ranks_;
  std::vector<std::vector<int>> shares_;
};

using Ranks = std::span<const std::vector<int>>;

/// How many of the first ranks keep to these processors, ascending.
size_t count_inside(const std::vector<int>& cpus, Ranks ranks) {
  size_t count = 0;
  while (count < ranks.size() && !ranks[count].empty() &&
         std::includes(cpus.begin(), cpus.end(), ranks[count].begin(), ranks[count].end()))
    ++count;
  return count;
}

std::vector<RankLevel> levels_of(const CoreTree& tree, Ranks ranks) {
  if (ranks.size() < 2) return {};
  const std::vector<RankLevel> undivided = {{tree.shared, static_cast<int64_t>(ranks.size())}};
  std::vector<std::vector<RankLevel>> inside;  // of each part that holds ranks
  size_t placed = 0, each = 0;
  for (const CoreTree& part : tree.parts) {
    const size_t count = count_inside(part.all_cpus(), ranks.subspan(placed));
    if (count == 0) continue;
    if (!inside.empty() && count != each) return undivided;
    each = count;
    inside.push_back(levels_of(part, ranks.subspan(placed, count)));
    placed += count;
  }
  if (placed != ranks.size()) return undivided;
  std::vector<RankLevel> levels = inside.front();
  for (const std::vector<RankLevel>& other : inside)
    if (other != levels) return undivided;
  if (inside.size() == 1) {
    if (!tree.shared.empty()) levels.back().shared = tree.shared;
    return levels;
  }
  for (const RankLevel& level : levels)
    if (level.shared == tree.shared) return undivided;  // names are unique
  levels.push_back({tree.shared, static_cast<int64_t>(inside.size())});
  return levels;
}

}  // namespace

int64_t CoreTree::num_cores() const {
  int64_t sum = parts.empty() ? 1 : 0;
  for (const CoreTree& part : parts) sum += part.num_cores();
  return sum;
}

std::vector<int> CoreTree::all_cpus() const {
  std::vector<int> all;
  collect(*this, all);
  std::sort(all.begin(), all.end());
  return all;
}

std::optional<CoreTree> restrict_cores(const CoreTree& tree, const std::vector<int>& cpus) {
  CoreTree left;
  left.shared = tree.shared;
  for (const int cpu : tree.cpus)
    if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) left.cpus.push_back(cpu);
  for (const CoreTree& part : tree.parts)
    if (std::optional<CoreTree> rest = restrict_cores(part, cpus))
      left.parts.push_back(std::move(*rest));
  if (left.parts.empty() && left.cpus.empty()) return std::nullopt;
  return left;
}

std::vector<std::vector<int>> divide_cores(const CoreTree& tree, int64_t ranks) {
  ensure(ranks >= 1 && tree.num_cores() >= ranks, "divide_cores: fewer cores than ranks");
  Division division(tree.num_cores() / ranks, ranks);
  division.take(tree);
  return division.shares();
}

std::vector<RankLevel> rank_levels(const CoreTree& tree,
                                   const std::vector<std::vector<int>>& ranks) {
  return levels_of(tree, ranks);
}

}  // namespace strait
