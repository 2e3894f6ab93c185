// Updates in the backward pass give the numbers of updates behind it, bit for bit.
#include <gtest/gtest.h>

#include "tests/train/trained.h"

namespace strait {
namespace {

using test::Trained;
using Sets = std::vector<std::string>;

class InBackward : public test::MeshRuns {
 protected:
  Trained train(Sets sets, const Sets& more, int64_t ranks) {
    sets.insert(sets.end(), more.begin(), more.end());
    return test::trained(test::small_run(folder_.path(), sets), ranks, next_folder());
  }
  void expect_same(const Sets& sets, int64_t ranks) {
    SCOPED_TRACE(::testing::PrintToString(sets));
    const Sets common = {"train.clip_norm=0", "train.steps=12"};
    const Trained want = train(common, sets, ranks);
    Sets early = sets;
    early.push_back("optimizer.in_backward=true");
    const Trained got = train(common, early, ranks);
    EXPECT_EQ(got.hash, want.hash);
    EXPECT_EQ(got.losses, want.losses);
  }
};

TEST_F(InBackward, PlacementsAndMicroSteps) {
  for (const char* micro : {"train.micro_batch_size=12", "train.micro_batch_size=4"}) {
    expect_same({micro}, 1);
    for (const char* preset : {"ddp", "zero1", "zero2", "zero3"})
      expect_same({micro, std::string("placement.preset=") + preset}, 2);
  }
}

TEST_F(InBackward, Levels) {
  const std::string levels =
      "cluster.levels=[{ name = \"pair\", size = 2, gb_per_second = 4.0, latency_microseconds = "
      "1.0 }, { name = \"world\", size = 0, gb_per_second = 1.0, latency_microseconds = 5.0 }]";
  for (const char* preset : {"zero++", "zero-topo", "hsdp"})
    expect_same({levels, std::string("placement.preset=") + preset}, 4);
}

/// With one micro-step gradients end with their update: a unit or two are alive at once.
TEST_F(InBackward, GradientsOfOneMicroStepLiveBriefly) {
  const Sets common = {"train.clip_norm=0", "train.steps=3", "model.shape.layers=8"};
  const auto outcome_of = [&](const char* early) {
    Sets sets = common;
    sets.push_back(early);
    return test::train_small(test::small_run(folder_.path(), sets), 1, next_folder());
  };
  const train::Outcome late = outcome_of("optimizer.in_backward=false");
  const train::Outcome early = outcome_of("optimizer.in_backward=true");
  EXPECT_EQ(early.parameter_hash, late.parameter_hash);
  for (const train::Outcome* outcome : {&late, &early})
    EXPECT_NEAR(static_cast<double>(outcome->pool_peak_bytes[0]),
                static_cast<double>(outcome->predicted_peak_bytes[0]),
                0.05 * static_cast<double>(outcome->predicted_peak_bytes[0]));
  const int64_t state = late.state_bytes[0].total() - early.state_bytes[0].total();
  EXPECT_NEAR(static_cast<double>(state), static_cast<double>(late.state_bytes[0].total()) / 4, 100)
      << "weights, gradients and two moments; some scalars";
  EXPECT_LT(early.pool_peak_bytes[0], late.pool_peak_bytes[0] - state / 2);
}

TEST_F(InBackward, Meshes) {
  expect_same({"mesh.axes.stage=2", "placement.preset=zero1", "train.micro_batch_size=4"}, 4);
  expect_same({"mesh.axes.x=2", "model.shape.ffn_width=36", "model.shape.vocabulary=24",
               "placement.preset=zero3"},
              4);
}

TEST_F(InBackward, LocalSteps) {
  const Sets diloco = {"sync.policy=diloco", "sync.rounds.period_steps=5"};
  expect_same(diloco, 2);
  expect_same(
      {"sync.policy=streaming-diloco", "sync.rounds.period_steps=6", "sync.rounds.fragments=3",
       "sync.rounds.delay_steps=1", "sync.replica=2", "placement.preset=zero1"},
      4);
  expect_same({"sync.policy=co2", "sync.rounds.period_steps=3"}, 2);
  expect_same({"sync.policy=post-local-sgd", "sync.rounds.period_steps=4", "mesh.axes.stage=2",
               "train.micro_batch_size=4"},
              4);
}

}  // namespace
}  // namespace strait
