// The last step of ranks that do not meet in every one, agreed without holding any of them up.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace strait::comm {

/// What the ranks of one host share; zero-filled memory is a run that nobody has asked to stop. A
/// rank says that it begins a step before it looks whether somebody asked, and who asks looks at
/// what is begun afterwards: so no rank is ever behind the last step. Thread-safe.
class LastStep {
 public:
  void ask() { asked_.store(1); }
  bool asked() const { return asked_.load() != 0; }
  /// False: somebody has asked, and what was agreed decides. `begun`: steps that the rank has.
  bool begin(int64_t step, std::atomic<int64_t>& begun) const {
    if (asked()) return false;
    begun.store(step + 1);
    return !asked();
  }
  /// The most steps that a rank here has begun: `begun()` of the first call. After ask().
  template <class Begun>
  int64_t settle(const Begun& begun) {
    int64_t unknown = 0;
    if (here_.load() == 0) here_.compare_exchange_strong(unknown, begun() + 1);
    return here_.load() - 1;
  }
  /// Over all hosts.
  void decide(int64_t steps) { all_.store(steps + 1); }
  std::optional<int64_t> decided() const {
    const int64_t all = all_.load();
    return all == 0 ? std::nullopt : std::optional(all - 1);
  }

 private:
  std::atomic<uint64_t> asked_{0};
  std::atomic<int64_t> here_{0}, all_{0};  // one more than the steps; 0 = not known yet
};

}  // namespace strait::comm
