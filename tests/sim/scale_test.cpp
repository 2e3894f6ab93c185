// 32,768 ranks in one process. Targets, of a processor: composing 50 ms, pricing 1 ms, simulating 1
// s, 1 GB; the limits leave room for slow machines and sanitizers, and still refuse anything that
// walks n x n transfers.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <functional>

#include "strait/config/parse.h"
#include "strait/cost/cost.h"
#include "strait/program/memory.h"
#include "strait/sim/simulate.h"
#include "strait/strategy/compose/design.h"
#include "strait/verify/verify.h"
#include "tests/pace.h"
#include "tests/sanitized.h"
#include "tests/sim/pipeline_programs.h"

namespace strait {
namespace {

constexpr int64_t kRanks = 32'768;
constexpr double kSlow = 10 * test::kSlowdown;  // times the target

/// Runs `work` a few times, prints the median and expects it below kSlow times the target.
void expect_seconds(const char* what, double target, const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int round = 0; round < 5; ++round) {
    const double began = test::thread_processor_seconds();
    work();
    seconds.push_back(test::thread_processor_seconds() - began);
  }
  std::sort(seconds.begin(), seconds.end());
  std::printf("%-44s %9.3f ms, target %g ms\n", what, 1e3 * seconds[2], 1e3 * target);
  EXPECT_LT(seconds[2], kSlow * target) << what;
}

int64_t most_resident_bytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

Run run_of(const std::string& preset, const std::string& placement, const std::string& cluster,
           int64_t ranks) {
  return parse_run(
      "[model]\npreset = \"" + preset + "\"\n", "test.toml",
      {"placement.preset=" + placement, "cluster.preset=" + cluster, "train.precision=bf16",
       "train.micro_batch_size=1", "train.global_batch_size=" + std::to_string(ranks)});
}

TEST(Scale, ZeroTopoOnFrontier) {
  const strait::Run run = run_of("gpt3-6.7b", "zero-topo", "frontier", kRanks);
  strategy::Design design;
  expect_seconds("composing and verifying zero-topo", 0.05,
                 [&] { design = strategy::make_design(run, kRanks, 50'257); });
  sim::Result result;
  expect_seconds("simulating it", 1,
                 [&] { result = sim::simulate(design.steady(), design.cluster); });
  cost::Cost cost;
  expect_seconds("pricing it", 0.001, [&] { cost = cost::price(design.steady(), design.cluster); });
  EXPECT_EQ(result.level_bytes, cost.level_bytes);
  EXPECT_GT(result.seconds, 0);
  std::printf("resident at most %.0f MB\n", static_cast<double>(most_resident_bytes()) / 1e6);
  EXPECT_LT(most_resident_bytes(), int64_t{1} << 31);
}

TEST(Scale, AModelOf175BillionOnAThousandRanks) {
  const strategy::Design design =
      strategy::make_design(run_of("gpt3-175b", "zero3", "dgx-h100", 1024), 1024, 50'257);
  sim::Result result;
  expect_seconds("simulating 175B under zero3, 1,024 ranks", 1,
                 [&] { result = sim::simulate(design.steady(), design.cluster); });
  EXPECT_EQ(result.level_bytes, cost::price(design.steady(), design.cluster).level_bytes);
}

TEST(Scale, APipelineOfWideStages) {
  constexpr int64_t kStages = 16;
  const std::vector<program::Program> classes =
      sim::one_forward_one_backward(kStages, 32, kRanks / kStages, 1'000'000);
  Cluster cluster;
  cluster.ranks = kRanks;
  cluster.levels = {{"node", 8, 1e11, 1e-6, 1}, {"world", kRanks / 8, 1e10, 1e-5, 4}};
  cluster.flops_per_second_fp32 = 1;
  expect_seconds("verifying 16 stages of 2,048 ranks", 1,
                 [&] { EXPECT_TRUE(program::verify(classes).empty()); });
  sim::Result result;
  expect_seconds("simulating them", 1, [&] { result = sim::simulate(classes, cluster); });
  EXPECT_EQ(result.representatives.size(), static_cast<size_t>(kStages));
  EXPECT_EQ(result.level_bytes, cost::price(classes, cluster).level_bytes);
  EXPECT_NEAR(result.bubble_share(), 15.0 / 47, 0.01);
  expect_seconds("pricing them", 0.001, [&] { cost::price(classes, cluster); });
}

}  // namespace
}  // namespace strait
