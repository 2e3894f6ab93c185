// Lines and bar of a run in progress, quantities.
#include "strait/report/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "strait/report/quantities.h"

namespace strait::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics example(int64_t step, double seconds = 0.25) {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = 5.25;
  metrics.gradient_norm = 0.875;
  metrics.learning_rate = 1.5e-3;
  metrics.tokens_per_second = 1024 / seconds;
  metrics.model_flops_utilization = 0.412;
  metrics.seconds = seconds;
  metrics.compute_seconds = 0.2;
  metrics.exposed_communication_seconds = 0.025;
  metrics.bytes_per_level = {{"pair", 1200000}, {"node", 0}, {"world", 35600000}};
  metrics.memory_bytes = 181000000;
  metrics.resident_bytes = 500000000;
  metrics.predicted_seconds = 0.24;
  return metrics;
}

TEST(ProgressTest, LineNamesEveryFigure) {
  EXPECT_EQ(
      Progress({.total_steps = 600}).line(example(20)),
      "step  20/600  loss 5.2500  gradient norm 0.875  rate 1.50e-03  4,096 tokens/s  MFU 41.2 %"
      "  sent 1.20 MB pair, 35.6 MB world  exposed 10.0 %  step 250 ms (predicted 240 ms)"
      "  memory 181 MB allocated, 500 MB resident");
}

TEST(ProgressTest, AnAssumedPredictionIsMarkedInEveryLine) {
  Progress progress({.total_steps = 600, .prediction_note = " by preset frontier"});
  EXPECT_THAT(progress.advance(example(1)), HasSubstr("(predicted 240 ms by preset frontier)"));
}

TEST(ProgressTest, UnknownFiguresAreMarked) {
  StepMetrics metrics;
  metrics.step = 1;
  EXPECT_EQ(Progress({.total_steps = 3}).line(metrics),
            "step 1/3  loss ?  gradient norm ?  rate ?  ? tokens/s  MFU ?  sent nothing  exposed ?"
            "  step ?");
}

TEST(ProgressTest, OneLinePerIntervalAndForFirstAndLastStep) {
  for (const int64_t resumed : {0, 7, 10}) {
    Progress progress({.total_steps = 25, .first_step = resumed, .log_every_steps = 10});
    std::vector<int64_t> logged;
    for (int64_t step = resumed + 1; step <= 25; ++step) {
      const std::string text = progress.advance(example(step));
      if (text.empty()) continue;
      EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
      EXPECT_THAT(text, Not(HasSubstr("\r")));
      logged.push_back(step);
    }
    std::vector<int64_t> expected = {resumed + 1};
    for (const int64_t step : {10, 20, 25}) {
      if (step > resumed + 1) expected.push_back(step);
    }
    EXPECT_EQ(logged, expected);
  }
}

TEST(ProgressTest, TimesAreMeansOverTheInterval) {
  Progress progress({.total_steps = 10, .log_every_steps = 3});
  progress.advance(example(1, 9.0));
  EXPECT_EQ(progress.advance(example(2, 0.1)), "");
  const std::string text = progress.advance(example(3, 0.3));
  EXPECT_THAT(text, HasSubstr("  step 200 ms "));    // (0.1 + 0.3) / 2, not the first step's 9 s
  EXPECT_THAT(text, HasSubstr("  5,120 tokens/s"));  // 2 * 1024 / 0.4
  EXPECT_THAT(text, HasSubstr("  exposed 12.5 %"));  // 2 * 0.025 / 0.4
}

TEST(ProgressTest, StepsLeftOutAreCountedByInterval) {
  Progress progress({.total_steps = 9, .log_every_steps = 3});
  const auto advance = [&](int64_t step, bool skipped) {
    StepMetrics metrics = example(step);
    metrics.skipped = skipped;
    return progress.advance(metrics);
  };
  EXPECT_THAT(advance(1, true), HasSubstr("\nstep 1  1 step left out: loss or gradient not fin"));
  advance(2, true);
  EXPECT_THAT(advance(3, true), HasSubstr("\nstep 3  2 steps left out: loss or gradient not f"));
  EXPECT_EQ(advance(4, true), "");
  EXPECT_EQ(advance(5, false), "");
  EXPECT_THAT(advance(6, false), HasSubstr("\nstep 6  1 step left out"));
  advance(7, false);
  advance(8, false);
  EXPECT_THAT(advance(9, false), Not(HasSubstr("left out")));
}

TEST(ProgressTest, EvaluationHasALineOfItsOwn) {
  Progress progress({.total_steps = 10, .log_every_steps = 100});
  progress.advance(example(1));
  StepMetrics metrics = example(5);
  metrics.validation_loss = 4.125;
  EXPECT_EQ(progress.advance(metrics), "step 5  validation loss 4.1250\n");
}

TEST(ProgressTest, BarFitsEveryTerminalAndShowsTheRest) {
  Progress progress({.total_steps = 600, .log_every_steps = 0});
  progress.advance(example(1, 0.5));
  for (int64_t columns = 0; columns <= 200; ++columns) {
    const std::string bar = progress.bar(example(300), columns);
    EXPECT_LE(static_cast<int64_t>(bar.size()), std::max<int64_t>(columns - 1, 0));
    if (columns >= 60) {
      EXPECT_THAT(bar, HasSubstr(" 50 %  300/600  loss 5.250  2 min 30 s left"));
    }
  }
  EXPECT_THAT(progress.bar(example(300), 100),
              HasSubstr("[####################....................]"));
}

TEST(QuantitiesTest, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(9994), "9.99 kB");
  EXPECT_EQ(bytes_text(9996), "10.0 kB");
  EXPECT_EQ(bytes_text(999600), "1.00 MB");
  EXPECT_EQ(bytes_text(35.6e9), "35.6 GB");
  EXPECT_EQ(bytes_text(2e21), "2000 EB");
}

TEST(QuantitiesTest, CountsSharesAndTimes) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999.6), "1,000");
  EXPECT_EQ(count_text(-1234567), "-1,234,567");
  EXPECT_EQ(count_text(std::nan("")), "?");
  EXPECT_EQ(share_text(0.4125), "41.2 %");
  EXPECT_EQ(seconds_text(12e-6), "12.0 us");
  EXPECT_EQ(seconds_text(0.9996), "1.00 s");
  EXPECT_EQ(seconds_text(59.94), "59.9 s");
  EXPECT_EQ(seconds_text(59.96), "1 min 00 s");
  EXPECT_EQ(seconds_text(3599.7), "1 h 00 min");
  EXPECT_EQ(seconds_text(7530), "2 h 06 min");
}

}  // namespace
}  // namespace strait::report
