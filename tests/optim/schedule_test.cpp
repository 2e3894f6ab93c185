// The learning rate at the points that the schedules are known by, and what [optimizer] refuses.
#include "strait/optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "strait/base/errors.h"

namespace strait::optim {
namespace {

using ::testing::HasSubstr;

OptimizerOptions options_of(const std::string& schedule, int64_t warmup, int64_t decay) {
  OptimizerOptions options;
  options.schedule = schedule;
  options.learning_rate = 1.0;
  options.minimum_learning_rate = 0.25;
  options.warmup_steps = warmup;
  options.decay_steps = decay;
  return options;
}

TEST(Schedule, WarmsUpAsNanoGpt) {
  for (const auto& name : schedule_names()) {
    const auto options = options_of(name, 4, 0);
    for (int64_t step = 0; step < 4; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate(options, step, 100), (step + 1) / 5.0) << name;
    }
    EXPECT_DOUBLE_EQ(learning_rate(options, 4, 100), 1.0) << name;
  }
}

TEST(Schedule, KnownPoints) {
  // Warm-up 10, end 110: halfway is step 60, a quarter of the way step 35.
  EXPECT_DOUBLE_EQ(learning_rate(options_of("linear", 10, 110), 60, 999), 0.625);
  EXPECT_DOUBLE_EQ(learning_rate(options_of("cosine", 10, 110), 60, 999), 0.625);
  EXPECT_NEAR(learning_rate(options_of("cosine", 10, 110), 35, 999),
              0.25 + 0.75 * 0.5 * (1 + std::sqrt(0.5)), 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(options_of("wsd", 10, 110), 89, 999), 1.0);
  EXPECT_NEAR(learning_rate(options_of("wsd", 10, 110), 100, 999), 0.625, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate(options_of("constant", 10, 0), 1000000, 999), 1.0);
}

TEST(Schedule, StaysAtTheMinimumFromTheEnd) {
  for (const std::string name : {"linear", "cosine", "wsd"}) {
    for (const int64_t step : {110, 111, 5000}) {
      EXPECT_DOUBLE_EQ(learning_rate(options_of(name, 10, 110), step, 999), 0.25) << name;
    }
    EXPECT_GT(learning_rate(options_of(name, 10, 110), 109, 999), 0.25) << name;
  }
}

TEST(Schedule, ZeroDecayStepsMeansTheRun) {
  for (const std::string name : {"linear", "cosine", "wsd"}) {
    for (int64_t step = 0; step < 130; ++step) {
      EXPECT_EQ(learning_rate(options_of(name, 10, 0), step, 110),
                learning_rate(options_of(name, 10, 110), step, 7777));
    }
  }
}

TEST(Schedule, NeverRisesAfterTheWarmUpAndIsFiniteForAnyWarmUp) {
  for (const auto& name : schedule_names()) {
    for (const int64_t warmup : {0, 1, 99, 100, 101, 500}) {
      double last = std::numeric_limits<double>::infinity();
      for (int64_t step = 0; step < 600; ++step) {
        const double rate = learning_rate(options_of(name, warmup, 0), step, 100);
        ASSERT_TRUE(std::isfinite(rate) && rate > 0.0 && rate <= 1.0) << name << " " << step;
        if (step > warmup) {
          ASSERT_LE(rate, last) << name << " " << step;
        }
        last = rate;
      }
    }
  }
}

TEST(Schedule, WarmUpLongerThanTheRunIsARamp) {
  const auto options = options_of("cosine", 1000, 0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 99, 100), 100.0 / 1001.0);
}

struct Refusal {
  const char* key;
  const char* part;  // of the message
  void (*change)(OptimizerOptions&);
};

TEST(ValidateOptimizer, RefusesWithKeyAndNearestChoice) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NO_THROW(validate_optimizer({}));
  const Refusal refusals[] = {
      {"kind", "\"adamw\"", [](OptimizerOptions& o) { o.kind = "adam"; }},
      {"schedule", "\"cosine\"", [](OptimizerOptions& o) { o.schedule = "cosin"; }},
      {"betas", "first", [](OptimizerOptions& o) { o.betas[0] = 1.0; }},
      {"betas", "second", [](OptimizerOptions& o) { o.betas[1] = -0.1; }},
      {"eps", "choice is 1e-08", [](OptimizerOptions& o) { o.eps = 0.0; }},
      {"eps", "choice is 1e-37", [](OptimizerOptions& o) { o.eps = 1e-46; }},
      {"weight_decay", "choice: 0", [](OptimizerOptions& o) { o.weight_decay = -1; }},
      {"learning_rate", "finite", [](OptimizerOptions& o) { o.learning_rate = INFINITY; }},
      {"minimum_learning_rate", "0.001",
       [](OptimizerOptions& o) { o.minimum_learning_rate = 0.01; }},
      {"warmup_steps", "negative", [](OptimizerOptions& o) { o.warmup_steps = -1; }},
      {"decay_steps", "negative", [](OptimizerOptions& o) { o.decay_steps = -5; }},
      {"decay_steps", "no effect",
       [](OptimizerOptions& o) { o.schedule = "constant", o.decay_steps = 5; }},
      {"minimum_learning_rate", "no effect",
       [](OptimizerOptions& o) { o.schedule = "constant", o.minimum_learning_rate = 0; }},
      {"eps", "no effect", [](OptimizerOptions& o) { o.kind = "sgd", o.eps = 1e-6; }},
      {"betas", "no effect", [](OptimizerOptions& o) { o.kind = "sgd", o.betas[1] = 0.5; }},
  };
  for (const Refusal& refusal : refusals) {
    OptimizerOptions options;
    refusal.change(options);
    try {
      validate_optimizer(options);
      ADD_FAILURE() << refusal.key << ": " << refusal.part;
    } catch (const UserError& error) {
      EXPECT_EQ(error.place().key, "optimizer." + std::string(refusal.key));
      EXPECT_THAT(error.what(), HasSubstr(refusal.part));
      EXPECT_THAT(error.what(), HasSubstr("optimizer." + std::string(refusal.key)));
    }
  }
  OptimizerOptions options;
  options.betas[0] = nan;
  EXPECT_THROW(validate_optimizer(options), UserError);
}

TEST(ValidateOptimizer, AcceptsDefaultsThatHaveNoEffect) {
  OptimizerOptions options;
  options.schedule = "constant";
  options.learning_rate = 1e-6;  // below the default minimum, which a constant schedule never reads
  EXPECT_NO_THROW(validate_optimizer(options));
  options.kind = "sgd";
  EXPECT_NO_THROW(validate_optimizer(options));
}

}  // namespace
}  // namespace strait::optim
