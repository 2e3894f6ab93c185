// Ranks as threads that start together: what probes and benchmarks measure under.
#pragma once

#include <barrier>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace strait::measure {

/// Lets the calling thread use `threads` OpenMP threads while this lives (BLAS, oneDNN and Strait's
/// own kernels obey that limit); restores the former limit.
class ThreadLimit {
 public:
  explicit ThreadLimit(int64_t threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  int former_;
};

/// Threads that live as long as this object, one per rank, each limited to `threads_per_rank`
/// OpenMP threads.
class RankTeam {
 public:
  RankTeam(int64_t ranks, int64_t threads_per_rank);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  int64_t ranks() const { return static_cast<int64_t>(marks_.size()); }

  /// Runs body(rank) on every rank's thread, begun together. Returns the seconds from the first
  /// begin to the last end. Blocking; one call at a time. Rethrows the exception of the lowest rank
  /// that threw one.
  double run(const std::function<void(int64_t rank)>& body);

 private:
  struct Mark {
    double begin = 0.0, end = 0.0;
    std::exception_ptr failure;
  };
  void serve(int64_t rank, int64_t threads);

  std::vector<Mark> marks_;
  std::barrier<> doors_;  // ranks and the caller: a job is there, a job is done
  std::barrier<> line_;   // ranks only: all awake
  const std::function<void(int64_t)>* body_ = nullptr;
  std::vector<std::jthread> threads_;
};

}  // namespace strait::measure
