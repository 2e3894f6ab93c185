#include "strait/strategy/pipeline/cuts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "strait/base/errors.h"

namespace strait::strategy {
namespace {

/// Blocks between embedding and head, whose times are added to their neighbours'.
std::vector<double> inner_seconds(const std::vector<double>& block_seconds) {
  std::vector<double> inner(block_seconds.begin() + 1, block_seconds.end() - 1);
  inner.front() += block_seconds.front();
  inner.back() += block_seconds.back();
  return inner;
}

/// The fewest runs of at most `longest`, of the blocks from each one on. A block longer than that
/// is none.
std::vector<int64_t> fewest_runs(const std::vector<double>& seconds, double longest) {
  const auto count = static_cast<int64_t>(seconds.size());
  std::vector<int64_t> runs(seconds.size() + 1, 0);
  double sum = 0;
  int64_t end = count;  // of the run that begins at `at` and is as long as may be
  for (int64_t at = count - 1; at >= 0; --at) {
    sum += seconds[static_cast<size_t>(at)];
    while (sum > longest && end > at) sum -= seconds[static_cast<size_t>(--end)];
    const int64_t rest = runs[static_cast<size_t>(end)];
    runs[static_cast<size_t>(at)] = end == at || rest > count ? count + 1 : rest + 1;
    if (end == at) sum = 0;
  }
  return runs;
}

/// The least longest run.
double least_longest(const std::vector<double>& seconds, int64_t runs) {
  double low = *std::ranges::max_element(seconds);
  double high = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  for (int halving = 0; halving < 60; ++halving) {
    const double middle = (low + high) / 2;
    (fewest_runs(seconds, middle).front() <= runs ? high : low) = middle;
  }
  return high * (1 + 1e-9);
}

}  // namespace

std::vector<int64_t> balanced_cuts(const std::vector<double>& block_seconds, int64_t runs) {
  const std::vector<double> seconds = inner_seconds(block_seconds);
  const auto count = static_cast<int64_t>(seconds.size());
  ensure(runs <= count, "more runs than blocks");
  const double longest = least_longest(seconds, runs);
  const std::vector<int64_t> fewest = fewest_runs(seconds, longest);
  double left = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  std::vector<int64_t> cuts;
  for (int64_t at = 0, run = 0; run + 1 < runs; ++run) {
    const double mean = left / static_cast<double>(runs - run);
    double sum = 0, best = -1;
    int64_t best_end = at + 1;
    double best_sum = seconds[static_cast<size_t>(at)];
    for (int64_t end = at + 1; end <= count - (runs - run - 1); ++end) {
      sum += seconds[static_cast<size_t>(end - 1)];
      if (sum > longest || (best >= 0 && std::abs(sum - mean) > best)) break;
      if (fewest[static_cast<size_t>(end)] > runs - run - 1) continue;
      best = std::abs(sum - mean);
      best_end = end;
      best_sum = sum;
    }
    left -= best_sum;
    at = best_end;
    cuts.push_back(at + 1);  // the embedding is block 0
  }
  return cuts;
}

}  // namespace strait::strategy
