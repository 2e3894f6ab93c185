// The table that strait plan prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/plan/search.h"

namespace strait::cli {

/// One line for each of the best `keep` candidates below a heading, then where the figures come
/// from and what was left out. Bytes are payload per step over all ranks: all of it, and what
/// crosses the outermost level of links.
std::vector<std::string> plan_table(const plan::SearchResult& result, int64_t keep);

/// What was left out and why.
std::string rejection_line(const plan::Rejection& rejection);

}  // namespace strait::cli
