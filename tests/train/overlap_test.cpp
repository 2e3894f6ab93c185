// What overlap hides: measured behind the end of a run, which it leaves as it is.
#include <gtest/gtest.h>

#include <cmath>

#include "strait/base/errors.h"
#include "tests/train/small_run.h"

namespace strait {
namespace {

using test::small_run;
using test::TemporaryFolder;
using test::train_small;

Run run_of(const TemporaryFolder& folder, const std::string& placement, int64_t overlap_steps) {
  return small_run(folder.path(), {"placement.preset=" + placement, "train.steps=3",
                                   "output.overlap_steps=" + std::to_string(overlap_steps),
                                   "cluster.levels=[{ name = \"node\", size = 2, gb_per_second = "
                                   "10.0 }, { name = \"world\", size = 0, gb_per_second = 1.0 }]"});
}

TEST(Overlap, IsMeasuredBehindARunThatStaysAsItIs) {
  for (const std::string placement : {"ddp", "zero3", "zero++", "zero-topo"}) {
    SCOPED_TRACE(placement);
    const TemporaryFolder folder;
    const train::Outcome plain =
        train_small(run_of(folder, placement, 0), 4, folder.path() + "/plain");
    const train::Outcome measured =
        train_small(run_of(folder, placement, 2), 4, folder.path() + "/measured");
    EXPECT_FALSE(plain.overlap);
    ASSERT_TRUE(measured.overlap);
    EXPECT_EQ(measured.overlap->steps, 2);
    EXPECT_GT(measured.overlap->seconds, 0);
    EXPECT_GT(measured.overlap->floor_seconds, 0);
    EXPECT_GT(measured.overlap->communication_seconds, 0);
    EXPECT_LT(measured.overlap->communication_seconds, measured.overlap->serial_seconds);
    EXPECT_EQ(measured.losses, plain.losses);
    EXPECT_EQ(measured.parameter_hash, plain.parameter_hash);
    EXPECT_EQ(measured.traffic.rows().size(), plain.traffic.rows().size());
    for (size_t row = 0; row < plain.traffic.rows().size(); ++row)
      EXPECT_EQ(measured.traffic.rows()[row].payload_bytes,
                plain.traffic.rows()[row].payload_bytes);
  }
}

TEST(Overlap, SharesAreThoseOfTheDefinition) {
  const train::Overlap half{5, 1.5, 2.0, 1.0, 1.0};
  EXPECT_DOUBLE_EQ(half.hidden_share(), 0.5);
  EXPECT_DOUBLE_EQ(half.hidden_share_without_floor(), 0.5);
  const train::Overlap dear{5, 1.2, 2.0, 1.1, 1.0};  // moving bytes takes a tenth of computing
  EXPECT_DOUBLE_EQ(dear.hidden_share(), 0.8 / 0.9);
  EXPECT_DOUBLE_EQ(dear.hidden_share_without_floor(), 0.8);
  const train::Overlap nothing{5, 1.0, 1.0, 1.0, 0.0};
  EXPECT_TRUE(std::isnan(nothing.hidden_share()));
  EXPECT_TRUE(std::isnan(nothing.hidden_share_without_floor()));
}

TEST(Overlap, OneRankHasNothingToHide) {
  const TemporaryFolder folder;
  strait::Run run = run_of(folder, "ddp", 2);
  run.cluster.levels.clear();
  EXPECT_THROW(make_job(run, 1), UserError);
}

}  // namespace
}  // namespace strait
