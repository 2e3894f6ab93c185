// The loss scale step by step against the rule written out.
#include "strait/optim/loss_scale.h"

#include <gtest/gtest.h>

#include "strait/base/random.h"

namespace strait::optim {
namespace {

TEST(LossScale, BeginsWithTheFieldsFigures) {
  const LossScale scale;
  EXPECT_EQ(scale.value(), 65536);
  EXPECT_EQ(scale.good_steps(), 0);
}

TEST(LossScale, DoublesAfterTwoThousandGoodStepsInARow) {
  LossScale scale;
  for (int step = 0; step < 1999; ++step) EXPECT_TRUE(scale.advance(true));
  EXPECT_EQ(scale.value(), 65536);
  scale.advance(true);
  EXPECT_EQ(scale.value(), 131072);
  for (int step = 0; step < 1999; ++step) scale.advance(true);
  EXPECT_TRUE(scale.advance(false));  // one step too early
  EXPECT_EQ(scale.value(), 65536);
  for (int step = 0; step < 1999; ++step) scale.advance(true);
  EXPECT_EQ(scale.value(), 65536);
}

TEST(LossScale, StopsAtTheSmallestAndSaysThatItCannotHelp) {
  LossScale scale;
  for (int step = 0; step < 16; ++step) EXPECT_TRUE(scale.advance(false));
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.advance(false));
  EXPECT_EQ(scale.value(), 1);
}

// Any history, cut anywhere and gone on from what a checkpoint holds, ends with the same scale.
TEST(LossScale, GoesOnFromACheckpoint) {
  const LossScaleOptions often{.initial = 1024, .growth_every = 3};
  const RandomStream stream(5, "loss scale");
  for (uint64_t history = 0; history < 50; ++history) {
    LossScale whole(often);
    LossScale resumed(often);
    double value = often.initial;
    int64_t good = 0;
    for (uint64_t step = 0; step < 40; ++step) {
      const bool finite = stream.below(history * 40 + step, 4) != 0;
      good = finite ? good + 1 : 0;
      if (!finite) value = value > 1 ? value / 2 : 1;
      if (good == 3) value *= 2, good = 0;
      whole.advance(finite);
      resumed.advance(finite);
      resumed = LossScale(often, resumed.value(), resumed.good_steps());
      EXPECT_EQ(whole.value(), value);
      EXPECT_EQ(resumed.value(), value);
    }
  }
}

}  // namespace
}  // namespace strait::optim
