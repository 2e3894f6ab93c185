#include "strait/threads/team.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "strait/base/clock.h"
#include "strait/threads/cores.h"

namespace strait {
namespace {

/// Whoever waits spins so long: beside nobody, as serial code between two parallel ones usually
/// takes, because a wake-up costs as much; where others want the cores, not even that.
constexpr double kSpinSeconds = 1e-3, kCrowdedSpinSeconds = 30e-6;
constexpr double kCrowdedSeconds = 0.1;  // since the system took a core away
constexpr int kLooksPerClock = 64;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Whether the system has lately taken the calling thread off its core before it waited. From the
/// first time on it takes short turns: members wait for each other, and so for the rest of the turn
/// that others have on the core of any of them.
class Crowd {
 public:
  bool around() {
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    if (usage.ru_nivcsw != taken_off_) {
      until_ = now_seconds() + kCrowdedSeconds;
      if (!std::exchange(short_turns_, true)) take_short_turns();
    }
    taken_off_ = usage.ru_nivcsw;
    return now_seconds() < until_;
  }

 private:
  int64_t taken_off_ = 0;
  double until_ = 0;
  bool short_turns_ = false;
};

thread_local Crowd crowd;

/// True once `value` is no longer `former`; false after `seconds`.
bool spin_while(const std::atomic<uint32_t>& value, uint32_t former, double seconds) {
  const SteadyTime end = deadline_after(seconds);
  do {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (value.load(std::memory_order_acquire) != former) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

/// Blocks until `value` is no longer `former`.
void wait_while(const std::atomic<uint32_t>& value, uint32_t former) {
  if (spin_while(value, former, kCrowdedSpinSeconds)) return;
  if (!crowd.around() && spin_while(value, former, kSpinSeconds)) return;
  value.wait(former, std::memory_order_acquire);
}

/// What all members run.
struct Task {
  TeamPart part = nullptr;
  const void* context = nullptr;
  int members = 0;
};

/// A thread that runs its part whenever its turn comes. Caches apart, so that waiting disturbs
/// nobody.
class alignas(128) Member {
 public:
  Member(const Task& task, int index) : task_(task), index_(index), thread_([this] { serve(); }) {}
  ~Member() {
    ending_ = true;
    begin();
    thread_.join();
  }
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  void begin() {
    turn_.fetch_add(1, std::memory_order_release);
    turn_.notify_one();
  }
  void wait() const {
    const uint32_t turn = turn_.load(std::memory_order_relaxed);
    wait_while(done_, turn - 1);
  }

 private:
  void serve();

  const Task& task_;
  const int index_;
  bool ending_ = false;
  std::atomic<uint32_t> turn_{0}, done_{0};
  std::thread thread_;
};

thread_local bool in_part = false;

void Member::serve() {
  in_part = true;
  for (uint32_t turn = 0;; ++turn) {
    wait_while(turn_, turn);
    if (ending_) return;
    task_.part(task_.context, index_, task_.members);
    done_.store(turn + 1, std::memory_order_release);
    done_.notify_one();
  }
}

class Team {
 public:
  void run(int threads, TeamPart part, const void* context) {
    grow(threads - 1);
    const int others = std::min(threads - 1, static_cast<int>(members_.size()));
    task_ = {part, context, others + 1};
    for (int at = 0; at < others; ++at) members_[at]->begin();
    in_part = true;
    part(context, 0, task_.members);
    in_part = false;
    for (int at = 0; at < others; ++at) members_[at]->wait();
  }

 private:
  void grow(int others) {
    while (!refused_ && static_cast<int>(members_.size()) < others) {
      try {
        const int index = static_cast<int>(members_.size()) + 1;
        members_.push_back(std::make_unique<Member>(task_, index));
      } catch (const std::system_error&) {
        refused_ = true;
      }
    }
  }

  Task task_;
  bool refused_ = false;
  std::vector<std::unique_ptr<Member>> members_;
};

thread_local Team team;

}  // namespace

void run_team(int threads, TeamPart part, const void* context) {
  if (threads <= 1 || in_part)
    part(context, 0, 1);
  else
    team.run(threads, part, context);
}

}  // namespace strait
