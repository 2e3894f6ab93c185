// A step of rounds of local steps on the average, where rounds are long.
#include <gtest/gtest.h>

#include "strait/config/parse.h"
#include "strait/predict/predict.h"
#include "strait/strategy/compose/design.h"

namespace strait::predict {
namespace {

/// What a long round adds to its steps vanishes, though its bytes together pass 2^63.
TEST(Rounds, BytesOfALongRoundAreThoseOfItsSteps) {
  const strategy::Design design = strategy::make_design(
      parse_run(
          "", "run.toml",
          {"model.preset=gpt2-350m", "train.global_batch_size=131072", "train.micro_batch_size=1",
           "train.steps=60000", "placement.preset=zero3", "cluster.preset=perlmutter",
           "sync.policy=diloco", "sync.replica=16", "sync.rounds.period_steps=60000"}),
      8192, 50257);
  const Ledger traffic = simulate(design).traffic;
  const Ledger step = sim::simulate(design.steady(), design.cluster).traffic;
  EXPECT_GT(6e4 * static_cast<double>(step.bytes()), 0x1p63);
  for (const Traffic& row : traffic.rows()) EXPECT_GE(row.payload_bytes, 0) << row.operation;
  EXPECT_NEAR(static_cast<double>(traffic.bytes()), static_cast<double>(step.bytes()),
              1e-4 * static_cast<double>(step.bytes()));
  EXPECT_EQ(price(design).traffic.bytes(), traffic.bytes());
}

/// C8 of CO2: a sum that takes half of a round is hidden by it; of one that takes two rounds, a
/// round as long as its steps is not.
TEST(Rounds, OfALateResultWhatIsLongerThanARoundIsExposed) {
  constexpr int64_t kPeriod = 10;
  strategy::Design design = strategy::make_design(
      parse_run("", "run.toml",
                {"model.preset=nano-char", "train.global_batch_size=2", "train.clip_norm=0",
                 "train.steps=1000", "train.precision=fp32", "placement.preset=ddp",
                 "sync.policy=co2", "sync.rounds.period_steps=" + std::to_string(kPeriod),
                 "cluster.levels=[{ name = \"world\", size = 0, gb_per_second = 1.0, "
                 "latency_microseconds = 0.0 }]"}),
      2, 65);
  Cluster& cluster = design.cluster;
  cluster.memory_bytes_per_second = cluster.codec_bytes_per_second = 1e18;
  cluster.model_flops_per_second_fp32 = cluster.flops_per_second_fp32 = 1e9;
  Level& links = cluster.levels.front();
  links.processor_share = 0;
  links.bytes_per_second = 1e18;
  const double step = simulate(design).seconds;
  const auto bytes = static_cast<double>(design.shape.parameters()) * 4;  // a rank sends, of two
  for (const double rounds : {0.5, 2.0}) {
    SCOPED_TRACE(rounds);
    links.bytes_per_second = bytes / (rounds * kPeriod * step);
    const sim::Result result = simulate(design);
    const double exposed = kPeriod * (rounds > 1 ? step : 0);
    EXPECT_NEAR(kPeriod * result.exposed_seconds, exposed, 0.02 * kPeriod * step);
    EXPECT_NEAR(result.seconds, step + exposed / kPeriod, 0.02 * step);
  }
}

}  // namespace
}  // namespace strait::predict
