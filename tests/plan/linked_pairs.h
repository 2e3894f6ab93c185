// The cluster of tests that plan: ranks that are joined two by two.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "strait/config/parse.h"

namespace strait::test {

/// nano-char on pairs of ranks, with the links inside and between pairs as a cluster file writes
/// them: "gb_per_second = 10.0, latency_microseconds = 1.0".
inline Run linked_pairs(const std::string& inside, const std::string& between,
                        const std::vector<std::string>& sets) {
  const std::string file = fmt::format(R"([model]
preset = "nano-char"
[cluster]
levels = [{{ name = "pair", size = 2, {} }}, {{ name = "site", size = 0, {} }}]
)",
                                       inside, between);
  return parse_run(file, "run.toml", sets);
}

}  // namespace strait::test
