// Stages on grids that plan tries.
#include "strait/plan/mixed.h"

#include <gtest/gtest.h>

#include "strait/base/errors.h"
#include "strait/plan/search.h"
#include "tests/plan/searched.h"

namespace strait::plan {
namespace {

using test::planned;
using Sets = std::vector<std::string>;

/// 22 billion parameters, of which four nodes of eight hold no more than their state.
Sets large(const Sets& more = {}) {
  Sets sets = {
      "model.preset=gpt2-124m",       "model.shape.layers=48",       "model.shape.width=6144",
      "model.shape.heads=48",         "model.shape.ffn_width=24576", "model.shape.context=2048",
      "model.shape.vocabulary=51200", "train.precision=bf16",        "train.recompute=block",
      "train.global_batch_size=64",   "placement.preset=zero1",      "cluster.preset=frontier"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

void allow_all(const strait::Run&) {}

TEST(Mixtures, AreThoseOfAxesAboveOneInsideOfNodes) {
  const auto run = planned(large());
  const auto runs = stages_on_grids(run, {32, 50257}, 100, allow_all);
  ASSERT_FALSE(runs.empty());
  for (const auto& one : runs) {
    const MeshAxes& axes = one.mesh.axes;
    EXPECT_TRUE(axes.x == 2 || axes.x == 4 || axes.x == 8) << axes.x;
    EXPECT_GT(axes.stage, 1);
    EXPECT_EQ(32 % (axes.x * axes.stage), 0);
    EXPECT_TRUE(one.written.contains("mesh.axes.stage"));
  }
  EXPECT_EQ(stages_on_grids(run, {32, 50257}, 2, allow_all).size(), 2U);
}

TEST(Mixtures, WhatCannotBeIsLeftOut) {
  const Setting setting{32, 50257};
  auto run = planned(large());
  const auto few_stages = [](const strait::Run& one) {
    if (one.mesh.axes.stage > 2) throw UserError("too many");
  };
  for (const auto& one : stages_on_grids(run, setting, 100, few_stages))
    EXPECT_EQ(one.mesh.axes.stage, 2);
  run.model.shape.vocabulary = 50257;  // which no x divides
  EXPECT_TRUE(stages_on_grids(run, setting, 100, allow_all).empty());
}

TEST(Mixtures, AreWhatAPlanChoosesWhereNeitherAxisIsEnough) {
  const auto best = [](const char* search_for) {
    const auto run = planned(large({std::string("plan.search=") + search_for}));
    return search(run, 32, 50257);
  };
  const SearchResult both = best("mesh,pipeline,micro_batch_size");
  ASSERT_FALSE(both.candidates.empty());
  const MeshAxes& axes = both.candidates.front().design.run.mesh.axes;
  EXPECT_GT(axes.x, 1);
  EXPECT_GT(axes.stage, 1);
  for (const char* alone : {"mesh,micro_batch_size", "pipeline,micro_batch_size"}) {
    const SearchResult one = best(alone);
    if (one.candidates.empty()) continue;
    EXPECT_GT(one.candidates.front().simulated.seconds, both.candidates.front().simulated.seconds)
        << alone;
  }
}

}  // namespace
}  // namespace strait::plan
