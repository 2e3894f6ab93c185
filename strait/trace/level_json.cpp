#include "strait/trace/level_json.h"

namespace strait::trace {
namespace {

int64_t per_step(int64_t sum, int64_t steps) {
  return steps <= 1 ? sum : (sum + steps / 2) / steps;
}

}  // namespace

Json levels_json(const Ledger& ledger, const std::vector<std::string>& levels, int64_t steps) {
  Json result = Json::array();
  for (size_t level = 0; level < levels.size(); ++level) {
    const int64_t index = static_cast<int64_t>(level);
    result.push_back(
        Json::object({{"level", levels[level]},
                      {"payload_bytes", per_step(ledger.payload_bytes(index), steps)},
                      {"metadata_bytes", per_step(ledger.metadata_bytes(index), steps)}}));
  }
  return result;
}

Json traffic_json(const Ledger& ledger, const std::vector<std::string>& levels, int64_t steps) {
  Json result = Json::array();
  for (const Traffic& row : ledger.rows())
    result.push_back(Json::object({{"operation", row.operation},
                                   {"level", levels[row.level]},
                                   {"codec", row.codec},
                                   {"payload_bytes", per_step(row.payload_bytes, steps)},
                                   {"metadata_bytes", per_step(row.metadata_bytes, steps)},
                                   {"count", per_step(row.count, steps)}}));
  return result;
}

}  // namespace strait::trace
