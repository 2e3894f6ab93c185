#include "strait/measure/rank_team.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>

#include "strait/base/clock.h"
#include "strait/base/errors.h"

namespace strait::measure {

ThreadLimit::ThreadLimit(int64_t threads) : former_(omp_get_max_threads()) {
  omp_set_num_threads(static_cast<int>(std::max<int64_t>(threads, 1)));
}

ThreadLimit::~ThreadLimit() { omp_set_num_threads(former_); }

RankTeam::RankTeam(int64_t ranks, int64_t threads_per_rank)
    : marks_(ranks), doors_(ranks + 1), line_(ranks) {
  ensure(ranks >= 1, "RankTeam: at least one rank");
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads_.emplace_back([this, rank, threads_per_rank] { serve(rank, threads_per_rank); });
  }
}

RankTeam::~RankTeam() {
  body_ = nullptr;
  doors_.arrive_and_wait();
}

void RankTeam::serve(int64_t rank, int64_t threads) {
  const ThreadLimit limit(threads);
  while (true) {
    doors_.arrive_and_wait();
    if (body_ == nullptr) return;
    Mark& mark = marks_[rank];
    line_.arrive_and_wait();
    mark.begin = now_seconds();
    try {
      (*body_)(rank);
    } catch (...) {
      mark.failure = std::current_exception();
    }
    mark.end = now_seconds();
    doors_.arrive_and_wait();
  }
}

double RankTeam::run(const std::function<void(int64_t rank)>& body) {
  for (Mark& mark : marks_) mark = {};
  body_ = &body;
  doors_.arrive_and_wait();
  doors_.arrive_and_wait();
  double begin = marks_[0].begin, end = marks_[0].end;
  for (const Mark& mark : marks_) {
    if (mark.failure) std::rethrow_exception(mark.failure);
    begin = std::min(begin, mark.begin);
    end = std::max(end, mark.end);
  }
  return end - begin;
}

}  // namespace strait::measure
