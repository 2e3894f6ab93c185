// More thread ranks than the system has threads for.
#include "strait/job/thread_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strait/base/errors.h"

namespace strait {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ThreadCheck, NamesTheLimitAndTheNearestNumberOfRanks) {
  const ThreadLimit limit{1000, "address space (ulimit -v)"};
  require_threads(200, limit);
  for (const int64_t ranks : {int64_t{201}, int64_t{2000}, int64_t{1'000'000'000}}) {
    try {
      require_threads(ranks, limit);
      FAIL() << "accepted " << ranks;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(std::to_string(ranks) + " thread ranks"),
                                      HasSubstr("address space (ulimit -v) allows 1000"),
                                      HasSubstr("the nearest number of ranks is 200")));
      EXPECT_EQ(error.place().key, "--ranks");
    }
  }
}

TEST(ThreadCheck, OneRankRunsOnAnySystem) { require_threads(1, {0, "nothing"}); }

TEST(ThreadCheck, TheSystemHasALimit) {
  const ThreadLimit limit = thread_limit();
  EXPECT_GT(limit.threads, 100) << limit.name;
  EXPECT_LT(limit.threads, int64_t{1} << 32) << limit.name;
}

}  // namespace
}  // namespace strait
