// What the ranks of one process send in each step, added up for the one that reports it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <vector>

namespace strait::train {

/// Thread-safe. Ranks may be steps apart.
class SentBytes {
 public:
  /// How long a rank may be behind the one that reports.
  explicit SentBytes(double deadline_seconds) : deadline_seconds_(deadline_seconds) {}

  /// A rank at work. Once one has failed nobody waits for what ranks have not added.
  class Presence {
   public:
    explicit Presence(SentBytes& sent) : sent_(sent), failures_(std::uncaught_exceptions()) {}
    ~Presence();
    Presence(const Presence&) = delete;
    Presence& operator=(const Presence&) = delete;

   private:
    SentBytes& sent_;
    int failures_;
  };

  /// A rank's bytes by level in a step, once for each step.
  void add(int64_t step, const std::vector<int64_t>& by_level);
  /// Their sum once so many ranks have added theirs, and forgets it. Blocking. Of fewer where a
  /// rank has failed, or is behind for longer than the deadline: the run ends then elsewhere.
  std::vector<int64_t> of_all(int64_t step, int64_t ranks);

 private:
  struct Sum {
    int64_t ranks = 0;
    std::vector<int64_t> by_level;
  };
  const double deadline_seconds_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::map<int64_t, Sum> steps_;
  bool failed_ = false;
};

}  // namespace strait::train
