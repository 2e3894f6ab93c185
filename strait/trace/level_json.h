// LEVELS and traffic rows of the reports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "strait/base/json.h"
#include "strait/trace/ledger.h"

namespace strait::trace {

/// [{level, payload_bytes, metadata_bytes}] innermost first; sums divided by `steps` (rounded).
Json levels_json(const Ledger& ledger, const std::vector<std::string>& levels, int64_t steps);

/// [{operation, level, codec, payload_bytes, metadata_bytes, count}], likewise per step.
Json traffic_json(const Ledger& ledger, const std::vector<std::string>& levels, int64_t steps);

}  // namespace strait::trace
