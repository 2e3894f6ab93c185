// What the ranks of one host stand at, as a text for those of another.
#pragma once

#include <string>
#include <vector>

#include "strait/trace/verdict.h"

namespace strait::comm {

/// `ranks`: of the text; the others of `standings` are left out. `now`: on the clock of the host.
std::string standings_text(const std::vector<trace::Standing>& standings,
                           const std::vector<int64_t>& ranks, double now);

/// Puts what `text` tells in its place, its times moved to the clock of this host, whose time is
/// `now`. Returns the ranks that it told of.
std::vector<int64_t> take_standings(const std::string& text, double now,
                                    std::vector<trace::Standing>& standings);

}  // namespace strait::comm
