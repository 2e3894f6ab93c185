// Run files that tests of the search plan, and what they look for in its result.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "strait/config/parse.h"
#include "strait/plan/search.h"

namespace strait::test {

/// On perlmutter, unless `sets` name a cluster.
inline Run planned(const std::vector<std::string>& sets) {
  std::vector<std::string> all = {"model.preset=nano-char"};
  const auto is_cluster = [](const std::string& set) { return set.starts_with("cluster."); };
  if (std::ranges::none_of(sets, is_cluster)) all.push_back("cluster.preset=perlmutter");
  all.insert(all.end(), sets.begin(), sets.end());
  return parse_run("", "run.toml", all);
}

inline int64_t rejected_count(const plan::SearchResult& result) {
  int64_t count = 0;
  for (const plan::Rejection& rejection : result.rejected) count += rejection.count;
  return count;
}

/// The rejection of a family; null where nothing of it was rejected.
inline const plan::Rejection* find_rejection(const plan::SearchResult& result,
                                             const std::string& family) {
  for (const plan::Rejection& rejection : result.rejected)
    if (rejection.family == family) return &rejection;
  return nullptr;
}

/// A name and the number that stands beside it.
using Choice = std::pair<std::string, int64_t>;

}  // namespace strait::test
