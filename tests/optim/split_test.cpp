// Chunks of a span: each once, on as many threads as are asked for.
#include "strait/optim/split.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace strait::optim {
namespace {

TEST(ForEachChunk, CoversEveryElementOnce) {
  for (const int64_t elements : {0, 1, 9, 10, 11, 57}) {
    for (const int threads : {-1, 0, 1, 2, 9}) {
      std::vector<int> seen(static_cast<size_t>(elements), 0);
      for_each_chunk(elements, 10, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      EXPECT_EQ(seen, std::vector<int>(seen.size(), 1)) << elements << " on " << threads;
    }
  }
}

// LibTorch sets OpenMP's limit of a thread that first uses it.
TEST(ForEachChunk, OpenMpDoesNotLimitTheThreads) {
  const int former = omp_get_max_threads();
  omp_set_num_threads(1);
  std::mutex mutex;
  std::set<std::thread::id> used;
  for_each_chunk(20, 10, 2, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    used.insert(std::this_thread::get_id());
  });
  omp_set_num_threads(former);
  EXPECT_EQ(used.size(), 2U);
}

}  // namespace
}  // namespace strait::optim
