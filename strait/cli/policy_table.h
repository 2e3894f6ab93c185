// The table that strait plan prints where policies of local steps vary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/plan/search.h"

namespace strait::cli {

/// One line for each of the best `keep` candidates of plan::search_policies below a heading, with
/// what is known of its cost in loss, then the sources and what was left out. Bytes are payload per
/// step over all ranks, and what a rank has in flight at once.
std::vector<std::string> policy_table(const plan::SearchResult& result, int64_t keep);

}  // namespace strait::cli
