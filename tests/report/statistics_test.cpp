#include "strait/report/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace strait::report {
namespace {

using ::testing::HasSubstr;

const double kNone = std::nan("");

TEST(FinalLoss, IsTheMeanOfTheLastSteps) {
  std::vector<double> losses(kLossSteps, 2.0);
  EXPECT_EQ(final_loss(losses), 2.0);
  losses.insert(losses.begin(), 1e9);  // one too old to count
  EXPECT_EQ(final_loss(losses), 2.0);
  EXPECT_EQ(final_loss({1.0, 4.0}), 2.5);
}

TEST(FinalLoss, LeavesOutStepsWithoutALoss) {
  EXPECT_EQ(final_loss({1.0, kNone, 4.0}), 2.5);
  EXPECT_TRUE(std::isnan(final_loss({kNone})));
  EXPECT_TRUE(std::isnan(final_loss({})));
}

TEST(StatisticsTest, AgainstHandCalculation) {
  const Statistics one = statistics_of({3.0});
  EXPECT_EQ(one.median, 3.0);
  EXPECT_EQ(one.p90, 3.0);
  std::vector<double> values;
  for (int i = 10; i >= 0; --i) values.push_back(i);
  values.push_back(std::nan(""));
  const Statistics eleven = statistics_of(values);
  EXPECT_EQ(to_json(eleven).dump(),
            R"({"median": 5, "min": 0, "max": 10, "p10": 1, "p90": 9, "count": 11})");
  EXPECT_DOUBLE_EQ(statistics_of({1.0, 2.0}).median, 1.5);
  EXPECT_DOUBLE_EQ(statistics_of({1.0, 2.0}).p90, 1.9);
  EXPECT_EQ(statistics_of({}).count, 0);
  EXPECT_THAT(to_json(statistics_of({})).dump(), HasSubstr(R"("median": null)"));
}

}  // namespace
}  // namespace strait::report
