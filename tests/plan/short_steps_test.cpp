// Long steps that are told from shorter ones, against the same steps simulated as a whole.
#include "strait/plan/short_steps.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/plan/searched.h"

namespace strait::plan {
namespace {

using test::planned;
using Sets = std::vector<std::string>;

TEST(ShortSteps, TellTheWholeOne) {
  const Sets cases[] = {
      {"placement.preset=ddp"},
      {"placement.preset=zero3"},
      {"placement.preset=zero-topo"},
      {"placement.preset=zero1", "mesh.axes.x=2"},
      {"mesh.axes.stage=4", "pipeline.order=1f1b", "placement.preset=zero1"},
      {"mesh.axes.stage=4", "pipeline.order=1f1b", "mesh.axes.x=2"},
      {"mesh.axes.stage=2", "pipeline.order=interleaved", "pipeline.chunks_per_stage=2"},
      {"mesh.axes.stage=4", "pipeline.order=zero-bubble-h1"},
      {"mesh.axes.stage=4", "pipeline.order=zero-bubble-h2", "train.clip_norm=0"},
  };
  for (const Sets& more : cases) {
    Sets sets = {"model.shape.layers=8", "train.micro_batch_size=1", "train.global_batch_size=512"};
    sets.insert(sets.end(), more.begin(), more.end());
    const auto run = planned(sets);
    const Setting setting{8, 66};
    const Candidate told = estimate(run, setting), whole = evaluate(run, setting);
    SCOPED_TRACE(candidate_text(run));
    EXPECT_TRUE(told.told);
    EXPECT_FALSE(whole.told);
    const auto expect_near = [](double got, double want) { EXPECT_NEAR(got, want, 0.01 * want); };
    expect_near(told.simulated.seconds, whole.simulated.seconds);
    expect_near(told.simulated.compute_seconds, whole.simulated.compute_seconds);
    expect_near(told.cost.flops, whole.cost.flops);
    expect_near(told.bound_seconds, whole.bound_seconds);
    EXPECT_EQ(told.memory.total(), whole.memory.total());
    const auto sent = [](const Candidate& one) {
      return static_cast<double>(one.simulated.traffic.bytes());
    };
    expect_near(sent(told), sent(whole));
    EXPECT_EQ(told.design.batch.accumulation, whole.design.batch.accumulation);
    EXPECT_DOUBLE_EQ(tokens_per_second(told) * told.simulated.seconds,
                     tokens_per_second(whole) * whole.simulated.seconds);
  }
}

TEST(ShortSteps, AreNotTakenWhereTheyTellNothing) {
  const Sets cases[] = {
      {"train.global_batch_size=64", "train.micro_batch_size=1"},  // eight micro-steps
      {"train.global_batch_size=512", "train.micro_batch_size=1", "mesh.axes.stage=2",
       "pipeline.order=gpipe"},         // all in memory
      {"train.global_batch_size=512"},  // one, as large as it goes
      {"train.global_batch_tokens=65536", "train.micro_batch_size=0"},
      {"train.global_batch_size=512", "train.micro_batch_size=1", "sync.policy=diloco",
       "train.steps=1000"},
  };
  for (const Sets& sets : cases) {
    SCOPED_TRACE(sets.back());
    EXPECT_FALSE(estimate(planned(sets), {8, 65}).told);
  }
}

/// The smallest micro-batches are tried however many a step has of them, but for gpipe, which no
/// shorter step tells.
TEST(ShortSteps, TellStagesOfThousandsOfMicroBatches) {
  const auto run = planned({"train.global_batch_size=8192", "plan.keep=1",
                            "plan.search=pipeline,micro_batch_size", "placement.preset=zero1"});
  std::set<int64_t> steps;
  for (const Candidate& one : search(run, 4, 66).candidates)
    if (one.design.run.mesh.axes.stage == 4) steps.insert(one.design.batch.accumulation);
  EXPECT_TRUE(steps.contains(4096));
  EXPECT_EQ(composed_micro_steps(planned({"mesh.axes.stage=4", "train.micro_batch_size=1",
                                          "train.global_batch_size=8192"}),
                                 4),
            12);
  EXPECT_EQ(composed_micro_steps(planned({"mesh.axes.stage=4", "train.micro_batch_size=1",
                                          "train.global_batch_size=8192", "pipeline.order=gpipe"}),
                                 4),
            8192);
  EXPECT_EQ(composed_micro_steps(planned({"train.global_batch_size=8192"}), 4), 0);
}

TEST(ShortSteps, WhatASearchShowsIsSimulatedAsAWhole) {
  const SearchResult result =
      search(planned({"train.global_batch_size=4096", "plan.keep=3"}), 8, 66);
  ASSERT_GT(result.candidates.size(), 3U);
  for (size_t at = 0; at < 3; ++at) EXPECT_FALSE(result.candidates[at].told) << at;
  EXPECT_TRUE(std::ranges::any_of(result.candidates, &Candidate::told));
  const Candidate& best = result.candidates.front();
  EXPECT_EQ(best.simulated.seconds, evaluate(best.design.run, {8, 66}).simulated.seconds);
}

}  // namespace
}  // namespace strait::plan
