// What is known of the loss that policies cost.
#include "strait/plan/quality.h"

#include <gtest/gtest.h>

#include <string>

namespace strait::plan {
namespace {

strategy::Policy streaming(int64_t replicas, int64_t period) {
  strategy::Policy policy;
  policy.name = "streaming-diloco";
  policy.replicas = replicas;
  policy.period = period;
  policy.delay = 1;
  policy.outer = {.nesterov = true, .learning_rate = 0.7, .momentum = 0.9};
  return policy;
}

TEST(Quality, APublishedCellIsFound) {
  const std::optional<QualityCost> cost = quality_of(streaming(4, 100), 1e9);
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->known.gap_nats, 0.04);  // 2.53 - 2.49, arXiv 2501.18512, tables 5 and 6
  EXPECT_EQ(cost->known.period, 100);
  EXPECT_FALSE(cost->extrapolated);
}

TEST(Quality, BeyondWhatIsKnownIsSaid) {
  EXPECT_TRUE(quality_of(streaming(16, 100), 1e9)->extrapolated);
  EXPECT_TRUE(quality_of(streaming(4, 500), 1e9)->extrapolated);
  EXPECT_TRUE(quality_of(streaming(2, 30), 1e3)->extrapolated);
  EXPECT_FALSE(quality_of(streaming(2, 30), 2e9)->extrapolated);
}

/// What was measured a step late says too little of results that are later.
TEST(Quality, DelaysCost) {
  strategy::Policy policy = streaming(2, 30);
  const double soon = quality_of(policy, 0.8e6)->known.gap_nats;
  policy.delay = 14;
  const std::optional<QualityCost> later = quality_of(policy, 0.8e6);
  EXPECT_EQ(later->known.gap_nats, 0.030);  // docs/local-steps.md
  EXPECT_GT(later->known.gap_nats, soon);
  EXPECT_FALSE(later->extrapolated);
  const std::optional<QualityCost> larger = quality_of(policy, 35e6);
  EXPECT_EQ(larger->known.delay, 1);
  EXPECT_TRUE(larger->extrapolated);
}

TEST(Quality, LateResultsHaveRowsOfTheirOwn) {
  strategy::Policy late = streaming(2, 30);
  late.name = "diloco";
  late.delay = late.period;
  const double naive = quality_of(late, 500e6)->known.gap_nats;
  late.eager = true;
  const double eager = quality_of(late, 500e6)->known.gap_nats;
  EXPECT_LT(eager, 0.05);
  EXPECT_GT(naive, 0.3);
}

TEST(Quality, Co2CostsWhatWeMeasured) {
  strategy::Policy policy;
  policy.name = "co2";
  policy.replicas = 2;
  policy.period = policy.delay = 12;
  policy.outer = {.momentum = 0.2, .clip = 0.01, .penalty = 2};
  const std::optional<QualityCost> cost = quality_of(policy, 0.8e6);
  ASSERT_TRUE(cost);
  EXPECT_EQ(cost->known.gap_nats, 0.081);  // docs/local-steps.md
  EXPECT_FALSE(cost->extrapolated);
}

/// A figure is of the outer optimizer and of the codec that it was measured with.
TEST(Quality, OtherOuterKeysAndFewerBitsAreExtrapolated) {
  strategy::Policy policy = streaming(2, 30);
  policy.codec = codec::parse_codec("e3m0/64");
  EXPECT_FALSE(quality_of(policy, 0.8e6)->extrapolated);
  policy.outer.learning_rate = 0.4;
  EXPECT_TRUE(quality_of(policy, 0.8e6)->extrapolated);
  EXPECT_FALSE(quality_of(policy, 35e6)->extrapolated) << "published with the defaults";
  strategy::Policy at_once = streaming(2, 30);
  at_once.name = "diloco";
  at_once.delay = 0;
  EXPECT_FALSE(quality_of(at_once, 0.8e6)->extrapolated);
  at_once.codec = policy.codec;
  EXPECT_TRUE(quality_of(at_once, 0.8e6)->extrapolated);
}

TEST(Quality, WhatNobodyMeasuredIsUnknown) {
  strategy::Policy policy = streaming(2, 30);
  policy.name = "slowmo";
  EXPECT_FALSE(quality_of(policy, 1e9));
  EXPECT_EQ(quality_of(strategy::kEveryStepPolicy, 1e9)->known.gap_nats, 0);
}

TEST(Quality, EveryRowNamesItsSource) {
  for (const QualityRow& row : quality_table()) {
    EXPECT_FALSE(std::string(row.source).empty());
    EXPECT_GT(row.parameters, 0);
    EXPECT_EQ(row.eager && !row.late, false);
  }
}

}  // namespace
}  // namespace strait::plan
