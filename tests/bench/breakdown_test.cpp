// The kernels of a step add up to the step, and their bounds to its costs.
#include "strait/bench/breakdown.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "strait/cost/cost.h"
#include "strait/train/solo_step.h"

namespace strait::measure {
namespace {

constexpr int64_t kLayers = 3, kSteps = 4;

Run tiny_run() {
  Run run;
  run.model = model_preset("nano-char");
  run.model.shape.layers = kLayers;
  run.model.shape.heads = run.model.shape.kv_heads = 2;
  run.model.shape.width = 16;
  run.model.shape.ffn_width = 40;
  run.model.shape.context = 12;
  run.train.global_batch_size = 2;
  run.runtime.threads_per_rank = 1;
  return run;
}

const KernelTime* find(const std::vector<KernelTime>& times, const std::string& kernel) {
  const auto found = std::ranges::find(times, kernel, &KernelTime::kernel);
  return found == times.end() ? nullptr : &*found;
}

TEST(Breakdown, KernelsAddUpToTheStep) {
  trace::Recorder recorder;
  train::SoloStep solo(tiny_run(), 65, nullptr, &recorder);
  solo.step();
  EXPECT_TRUE(recorder.spans().empty()) << "nothing is kept before it is asked for";
  recorder.record_all(true);
  double seconds = 0;
  for (int64_t step = 0; step < kSteps; ++step) seconds += solo.step().seconds / kSteps;
  const program::Program& program = program::class_of(solo.design().steady(), 0);
  const double rate = 1e9;
  const auto times = kernel_times(program, recorder, kSteps, {rate, 1e300});
  double sum = 0, bound = 0;
  for (const KernelTime& time : times) {
    sum += time.seconds;
    bound += time.bound_seconds;
  }
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, seconds);
  const double flops = cost::price(program, solo.design().cluster).flops;
  EXPECT_NEAR(bound, flops / rate, 1e-9 * flops / rate);
  ASSERT_NE(find(times, "backward"), nullptr);
  EXPECT_EQ(find(times, "backward")->count, kLayers + 1) << "blocks and the embedding";
  EXPECT_GT(find(times, "backward")->seconds, 0);
  ASSERT_NE(find(times, "update"), nullptr);
  EXPECT_GT(find(times, "update")->seconds, 0);
  EXPECT_TRUE(std::ranges::is_sorted(times, std::ranges::greater(), &KernelTime::seconds));
  double shares = 0;
  const Json rows = breakdown_json(times, seconds);
  for (const Json& row : rows.as_array()) shares += row.at("share").as_number();
  EXPECT_NEAR(shares, 1, 1e-9);
  EXPECT_EQ(rows.as_array().back().at("kernel").as_string(), "other");
}

TEST(Breakdown, BytesCountAtTheirRate) {
  trace::Recorder recorder;
  train::SoloStep solo(tiny_run(), 65, nullptr, &recorder);
  const program::Program& program = program::class_of(solo.design().steady(), 0);
  const auto slow = kernel_times(program, recorder, 1, {1e300, 1e6});
  double bytes = 0;
  program::for_each_instance(program, [&](const program::Op& op, const program::Loops&) {
    if (op.kernel) bytes += program::cost_of(program, op, 0).bytes;
  });
  double bound = 0;
  for (const KernelTime& time : slow) bound += time.bound_seconds;
  EXPECT_NEAR(bound, bytes / 1e6, 1e-9 * bytes / 1e6);
  EXPECT_EQ(slow.front().seconds, 0) << "no step was recorded";
}

}  // namespace
}  // namespace strait::measure
