// Long steps told from shorter ones, for a search: once all stages work, every further micro-batch
// takes the same time.
#pragma once

#include <cstdint>

#include "strait/plan/candidate.h"

namespace strait::plan {

/// Of the longest step that estimate() composes; 0: not known before that.
int64_t composed_micro_steps(const Run& run, int64_t ranks);

/// As evaluate. A step of many micro-batches is told from two steps of fewer: their seconds and
/// bytes are continued in a straight line, which is exact but for how transfers meet on shared
/// links (half a percent). Not for batches of documents, gpipe or policies of local steps. Such a
/// candidate is `told`.
Candidate estimate(const Run& run, const Setting& setting);

}  // namespace strait::plan
