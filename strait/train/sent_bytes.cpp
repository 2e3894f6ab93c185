#include "strait/train/sent_bytes.h"

#include <chrono>

namespace strait::train {

SentBytes::Presence::~Presence() {
  if (std::uncaught_exceptions() == failures_) return;
  {
    const std::lock_guard lock(sent_.mutex_);
    sent_.failed_ = true;
  }
  sent_.added_.notify_all();
}

void SentBytes::add(int64_t step, const std::vector<int64_t>& by_level) {
  {
    const std::lock_guard lock(mutex_);
    Sum& sum = steps_[step];
    ++sum.ranks;
    sum.by_level.resize(by_level.size());
    for (size_t level = 0; level < by_level.size(); ++level) sum.by_level[level] += by_level[level];
  }
  added_.notify_all();
}

std::vector<int64_t> SentBytes::of_all(int64_t step, int64_t ranks) {
  std::unique_lock lock(mutex_);
  added_.wait_for(lock, std::chrono::duration<double>(deadline_seconds_),
                  [&] { return failed_ || steps_[step].ranks == ranks; });
  return std::move(steps_.extract(step).mapped().by_level);
}

}  // namespace strait::train
