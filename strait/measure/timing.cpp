#include "strait/measure/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "strait/base/clock.h"
#include "strait/base/errors.h"

namespace strait::measure {
namespace {

constexpr int64_t kMostRepeats = 10000;

/// One contender on its way through the runs.
struct Lane {
  const Contender* contender;
  Timings timings;
  int64_t repeats = 1;

  double seconds_per_call() const {
    double total = 0.0;
    for (int64_t i = 0; i < repeats; ++i) total += contender->run();
    return total / static_cast<double>(repeats);
  }

  void warm_up(const TimingOptions& options) {
    double seconds = 0.0;
    for (int64_t i = 0; i < std::max<int64_t>(options.warmups, 1); ++i) seconds = contender->run();
    const double wanted = options.minimum_run_seconds /
                          std::max(seconds * static_cast<double>(contender->pieces), 1e-9);
    repeats = std::clamp<int64_t>(static_cast<int64_t>(std::ceil(wanted)), 1, kMostRepeats);
  }

  /// Calls `work` unless the contender is missing; the errors of a peer make it missing.
  template <class Work>
  void attempt(bool is_peer, const Work& work) {
    if (!timings.missing.empty()) return;
    try {
      work();
    } catch (const Error& error) {
      if (!is_peer) throw;
      timings.missing = error.what();
      timings.seconds.clear();
    }
  }
};

}  // namespace

std::vector<Timings> time_interleaved(const std::vector<Contender>& contenders,
                                      const TimingOptions& options) {
  if (options.runs < 5) {
    throw UserError(fmt::format(
        "a benchmark wants at least 5 runs, not {}; nearest valid choice: 5", options.runs));
  }
  std::vector<Lane> lanes;
  for (const Contender& contender : contenders) {
    lanes.push_back({&contender, {contender.name, contender.version, {}, contender.missing}});
  }
  const int64_t count = static_cast<int64_t>(lanes.size());
  for (int64_t i = 0; i < count; ++i) {
    lanes[i].attempt(i > 0, [&] { lanes[i].warm_up(options); });
  }
  for (int64_t run = 0; run < options.runs; ++run) {
    for (int64_t turn = 0; turn < count; ++turn) {
      const int64_t i = (run + turn) % count;
      lanes[i].attempt(i > 0,
                       [&] { lanes[i].timings.seconds.push_back(lanes[i].seconds_per_call()); });
    }
  }
  std::vector<Timings> timings;
  for (Lane& lane : lanes) timings.push_back(std::move(lane.timings));
  return timings;
}

std::function<double()> timed(std::function<void()> work) {
  return [work = std::move(work)] {
    const double start = now_seconds();
    work();
    return now_seconds() - start;
  };
}

}  // namespace strait::measure
