// Bytes that ranks exchange outside of programs: counted, and apart from those of training.
#include <gtest/gtest.h>

#include <map>

#include "strait/layout/layout.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

TEST(Bookkeeping, IsCountedApartFromTraining) {
  constexpr int64_t kRanks = 4;
  const test::TemporaryFolder folder;
  strait::Run run = test::small_run(folder.path(), {"train.steps=3", "placement.preset=zero3"});
  run.output.run_dir = folder.path() + "/run";
  const Job job = make_job(run, kRanks);
  train::Outcome outcome;
  train::train(job, {}, std::atomic<int>{0}, outcome);
  std::map<std::string, int64_t> bytes;
  for (const Traffic& row : outcome.bookkeeping.rows())
    bytes[row.operation] += row.payload_bytes + row.metadata_bytes;
  EXPECT_EQ(bytes.size(), 2u);
  // Before the first step, whether anybody was asked to stop: one integer.
  EXPECT_EQ(bytes["all-reduce"], 8 * 2 * (kRanks - 1));
  // For the hash, the weights that rank 0 does not hold itself.
  int64_t collected = 0;
  for (const UnitShape& unit : job.design.shape.units)
    for (int64_t rank = 1; rank < kRanks; ++rank)
      collected += 8 * shard_of(unit.elements, kRanks, kRanks, rank).size();
  EXPECT_EQ(bytes["all-to-all"], collected);
}

}  // namespace
}  // namespace strait
