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

}  // namespace
}  // namespace strait::predict
