// What the ranks of a saved run owe: residuals of error feedback.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "strait/checkpoint/reader.h"

namespace strait::test {

/// Sum over the senders of a run's residuals, by state, unit and element.
inline std::map<std::string, std::vector<double>> owed(const std::string& run_dir) {
  std::map<std::string, std::vector<double>> sums;
  const checkpoint::CheckpointReader reader(run_dir);
  for (const checkpoint::ShardRecord& shard : reader.manifest().shards) {
    const checkpoint::StateRange& range = shard.range;
    if (range.sender == checkpoint::kNoSender) continue;
    std::vector<float> values(static_cast<size_t>(range.elements()));
    reader.load(range, std::as_writable_bytes(std::span(values)));
    std::vector<double>& sum = sums[range.state + range.unit];
    sum.resize(static_cast<size_t>(reader.manifest().unit(range.unit)->elements));
    for (size_t i = 0; i < values.size(); ++i)
      sum[static_cast<size_t>(range.begin) + i] += static_cast<double>(values[i]);
  }
  return sums;
}

}  // namespace strait::test
