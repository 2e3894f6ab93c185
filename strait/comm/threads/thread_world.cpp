#include "strait/comm/threads/thread_world.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <limits>
#include <map>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "strait/base/clock.h"
#include "strait/base/errors.h"
#include "strait/comm/call_check.h"
#include "strait/comm/threads/thread_communicator.h"

namespace strait::comm {

namespace {

using Key = std::pair<std::vector<int64_t>, int64_t>;  // members, lane

/// Spinning pays when every rank and its worker can have a core; otherwise it takes the core from
/// the thread that is waited for, and only the time of a switch or two is worth it.
double default_spin_seconds(int64_t size) {
  const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  return 2 * size <= cores ? 50e-6 : 10e-6;
}

}  // namespace

/// The meetings of all ranks. Thread-safe.
class ThreadWorlds::Shared {
 public:
  Shared(const Cluster& cluster, const ThreadWorldOptions& options, double spin)
      : hub_(std::make_shared<Hub>(cluster, options, spin)) {}

  const std::shared_ptr<Hub>& hub() const { return hub_; }

  std::shared_ptr<Meeting> meeting(const Key& key) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<Meeting>& found = meetings_[key];
    if (!found) found = std::make_shared<Meeting>(hub_, key.first, key.second);
    return found;
  }

 private:
  const std::shared_ptr<Hub> hub_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<Meeting>> meetings_;
};

class ThreadWorlds::ThreadWorld final : public World {
 public:
  ThreadWorld(std::shared_ptr<Shared> shared, int64_t rank, int64_t size)
      : shared_(std::move(shared)),
        rank_(rank),
        size_(size),
        state_(std::make_shared<RankState>()) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }

  Communicator& communicator(const std::vector<int64_t>& members, int64_t lane) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<ThreadCommunicator>& found = communicators_[{members, lane}];
    if (!found) {
      check_members(members, rank_, size_);
      const auto position =
          std::lower_bound(members.begin(), members.end(), rank_) - members.begin();
      found = std::make_shared<ThreadCommunicator>(
          shared_->hub(), shared_->meeting({members, lane}), state_, position);
    }
    return *found;
  }

  /// A lost rank tells nobody.
  void abort(const std::string& reason, const ErrorPlace& place, Cause cause) override {
    if (!state_->lost.load()) shared_->hub()->ring(rank_, reason, place, cause);
  }
  bool begins_step(int64_t step, bool asked, double) override {
    Hub& hub = *shared_->hub();
    if (asked) hub.last_step.ask();
    if (hub.last_step.begin(step, waits()->steps_begun())) return true;
    return step < hub.last_step.settle([&] { return most_steps_begun(hub.rows); });
  }
  WaitRow* waits() override { return &shared_->hub()->own_rows[rank_]; }

  void stop() {
    for (const auto& [key, communicator] : communicators_)
      if (communicator) communicator->stop();
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const int64_t rank_;
  const int64_t size_;
  const std::shared_ptr<RankState> state_;
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<ThreadCommunicator>> communicators_;
};

ThreadWorlds::ThreadWorlds(int64_t size, const Cluster& cluster,
                           const ThreadWorldOptions& options) {
  const double spin =
      options.spin_seconds < 0.0 ? default_spin_seconds(size) : options.spin_seconds;
  shared_ = std::make_shared<Shared>(cluster, options, spin);
  for (int64_t rank = 0; rank < size; ++rank)
    worlds_.push_back(std::make_unique<ThreadWorld>(shared_, rank, size));
}

ThreadWorlds::~ThreadWorlds() {
  shared_->hub()->ring(-1, "the thread world was destroyed with operations pending", {},
                       Cause::kLost);
  for (const auto& world : worlds_) world->stop();
}

World& ThreadWorlds::world(int64_t rank) const {
  if (rank < 0 || rank >= size())
    throw UserError("rank " + std::to_string(rank) + " is not in 0.." + std::to_string(size() - 1));
  return *worlds_[rank];
}

std::unique_ptr<ThreadWorlds> make_thread_worlds(int64_t size, const Cluster& cluster,
                                                 const ThreadWorldOptions& options) {
  if (size < 1)
    throw UserError("a world of " + std::to_string(size) + " ranks; the smallest has 1");
  if (cluster.ranks != size || cluster.levels.empty())
    throw UserError("a world of " + std::to_string(size) + " ranks on a cluster laid out for " +
                    std::to_string(cluster.ranks) + " ranks in " +
                    std::to_string(cluster.levels.size()) + " levels");
  return std::make_unique<ThreadWorlds>(size, cluster, options);
}

namespace {

/// Whether a failure of `rank` is most often the echo of another one's.
bool is_echo(const Failure& failure, int64_t rank) {
  if (failure.kind == Failure::Kind::kPeerLost) return true;
  return cause_of(failure) != Cause::kLost && failure.place.rank.value_or(rank) != rank;
}

/// The ranks of one run_ranks: who still runs, and what failed. An echo may be thrown before the
/// exception of the rank that it comes from arrives here: it is told only when nothing else failed.
/// Thread-safe.
class Runners {
 public:
  explicit Runners(int64_t size) : running_(static_cast<size_t>(size), true) {}

  /// The body of a rank has ended, by the exception now being handled when `failed`.
  void end(World& world, bool failed) {
    if (failed) {
      const Failure failure = current_failure();
      take(is_echo(failure, world.rank()) ? echo_ : cause_, std::current_exception());
      world.abort(failure.message, failure.place, cause_of(failure));
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    running_[world.rank()] = false;
    changed_.notify_all();
  }

  /// A failure that no rank has thrown.
  void fail(const Failure& failure) {
    try {
      raise(failure);
    } catch (...) {
      take(cause_, std::current_exception());
    }
  }

  /// Returns when all ranks have ended, or `grace_seconds` after the first failure.
  void wait(const RankWatch& watch, const std::function<void(const Failure&)>& tell) {
    constexpr std::chrono::milliseconds kTurn(50);
    std::unique_lock<std::mutex> lock(mutex_);
    bool told = false;
    while (!changed_.wait_for(lock, kTurn, [this] { return still_running().empty(); })) {
      if (first_failure_ > 0 && now_seconds() > first_failure_ + watch.grace_seconds) return;
      if (!watch.overdue || told) continue;
      lock.unlock();
      if (const std::optional<Failure> late = watch.overdue()) {
        told = true;
        fail(*late);
        tell(*late);
      }
      lock.lock();
    }
  }

  std::vector<int64_t> still_running() const {
    std::vector<int64_t> ranks;
    for (size_t rank = 0; rank < running_.size(); ++rank)
      if (running_[rank]) ranks.push_back(static_cast<int64_t>(rank));
    return ranks;
  }
  std::vector<int64_t> stuck() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return still_running();
  }
  std::exception_ptr cause() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return cause_ ? cause_ : echo_;
  }

 private:
  void take(std::exception_ptr& slot, const std::exception_ptr& exception) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!slot) slot = exception;
    if (first_failure_ == 0) first_failure_ = now_seconds();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> running_;
  std::exception_ptr cause_, echo_;
  double first_failure_ = 0;  // now_seconds(), 0 = none
};

}  // namespace

namespace {

/// The system has no thread for rank `first`: it and those behind it end before they began. Each
/// rank needs threads for its transfers besides.
void end_unstarted(ThreadWorlds& worlds, int64_t first, const std::string& reason,
                   Runners& runners) {
  try {
    throw UserError(fmt::format(
        "the system refuses a thread for rank {} of {}: {}; the nearest number of ranks "
        "that may work is {}",
        first, worlds.size(), reason, std::max<int64_t>(first / 5, 1)));
  } catch (const UserError&) {
    for (int64_t rank = first; rank < worlds.size(); ++rank) runners.end(worlds.world(rank), true);
  }
}

}  // namespace

void run_ranks(ThreadWorlds& worlds, const std::function<void(World&)>& body) {
  RankWatch patient;
  patient.grace_seconds = std::numeric_limits<double>::infinity();
  run_ranks(worlds, body, patient);
}

void run_ranks(ThreadWorlds& worlds, const std::function<void(World&)>& body,
               const RankWatch& watch) {
  Runners runners(worlds.size());
  const auto run = [&](World& world) {
    try {
      body(world);
      world.waits()->ended();
    } catch (...) {
      return runners.end(world, true);
    }
    runners.end(world, false);
  };
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < worlds.size(); ++rank) {
    try {
      threads.emplace_back(run, std::ref(worlds.world(rank)));
    } catch (const std::system_error& error) {
      end_unstarted(worlds, rank, error.code().message(), runners);
      break;
    }
  }
  runners.wait(watch, [&](const Failure& late) {
    worlds.world(late.place.rank.value_or(0)).abort(late.message, late.place);
  });
  const std::vector<int64_t> stuck = runners.stuck();
  if (!stuck.empty() && watch.stuck) watch.stuck(runners.cause(), stuck);
  for (std::thread& thread : threads) thread.join();
  if (const std::exception_ptr cause = runners.cause()) std::rethrow_exception(cause);
}

}  // namespace strait::comm
